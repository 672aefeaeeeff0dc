"""README's sentences on what the methods buy are made of records, and leave out what has none."""

import pandas as pd

from alkit.data.paths import root
from alkit.records import results
from studies import elastic_study, today


def test_a_sentence_a_family_with_the_records_numbers():
    found = today.sentences()
    assert len(found) == 5
    rivals = results.load("43_results", "rivals")
    kept = rivals if len(rivals) else results.load("43_results", "cpu")
    table = elastic_study.ablation(kept)
    against = table.loc["cifar10"]["against ddp"]["elastic"]
    assert f"{against:.1f} times as fast as data parallel" in found[3]
    lines = "\n".join(f"- {each}" for each in found)
    assert f"<!-- today -->\n{lines}\n<!-- /today -->" in (root() / "README.md").read_text()


def test_no_record_no_sentence(monkeypatch):
    kept = results.load

    def load(name: str, preset: str) -> pd.DataFrame:
        return pd.DataFrame() if name == "43_results" else kept(name, preset)

    monkeypatch.setattr(results, "load", load)
    assert [each.split("**")[1] for each in today.sentences()] == [
        "Associated learning", "Delayed gradients", "PipeLearn", "Target propagation",
    ]  # fmt: skip


def made(points, half):
    """Return a gap of six seeds with as wide a bootstrap, and its p."""
    ends = (points - half, points + half)
    found = today.Gap(points, *ends, *ends, seeds=6, least=points, most=points)
    return found, found.p


def test_verdicts_are_counted_and_the_ends_of_what_is_decided_have_numbers():
    gaps = {
        ("a", "lstm", "linear - bp"): made(0.7, 0.2),
        ("b", "lstm", "cosine - bp"): made(2.0, 0.2),
        ("c", "lstm", "coupled - bp"): made(-3.0, 0.2),
        ("d", "lstm", "linear - bp"): made(0.0, 0.2),
        ("e", "lstm", "linear - bp"): made(0.0, 5.0),
    }
    assert today._counted(gaps) == (
        "ahead in 2, equal in 1, open in 1 and behind in 1"
        " (decided: +2.00 [+1.80, +2.20] (6) points on b x lstm, cosine heads"
        " to -3.00 [-3.20, -2.80] (6) points on c x lstm, AL's coupled codes)"
    )
    one = {key: gaps[key] for key in list(gaps)[:1]}
    assert today._counted(one).startswith(
        "ahead in 1 (decided: +0.70 [+0.50, +0.90] (6) points on a"
    )
    assert " to " not in today._counted(one)
    assert today._counted({key: gaps[key] for key in list(gaps)[3:]}) == "equal in 1 and open in 1"


def test_every_set_s_deepest_network_is_told(monkeypatch):
    settings = {
        ("digits", "convnet of 02"): 9.0,
        ("digits", "convnet of 16"): 1.0,
        ("cifar10", "convnet of 08"): -1.0,
    }
    contrasts = ("detached - fixed_codes", "coupled - cosine", "linear - bp")
    deep = {(*at, name): made(by, 0.1) for at, by in settings.items() for name in contrasts}
    found = iter([{}, deep])
    monkeypatch.setattr(today.ladder_tables, "contrast_gaps", lambda rows: next(found))
    told = today._ladder()
    assert " Accuracy in 2 settings" in told
    assert "on digits x convnet of 16, linear heads to -1.00" in told
    assert "on cifar10 x convnet of 08)" in told


def test_what_old_weights_cost_is_a_range_over_settings(monkeypatch):
    costs = {(0.1, 3): 0.09, (0.0, 5): 0.13, (0.1, 5): 0.14}
    gaps = {(*at, "pipedream - seq"): made(by, 0.01) for at, by in costs.items()}
    gaps |= {(0.1, 3, "fr - seq"): made(9.0, 0.1)}
    monkeypatch.setattr(today.characters_study, "contrast_gaps", lambda rows: gaps)
    told = today._late()
    assert "in 3 settings, +0.09 [+0.08, +0.10] (6) nats with 3 modules and dropout 0.1" in told
    assert " to +0.14 [+0.13, +0.15] (6) nats with 5 modules and dropout 0.1 (" in told

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


def test_verdicts_stand_with_their_sets_and_numbers_where_something_is_decided():
    found = [("behind", "-2 (5)", "c"), ("equal", "+0 (5)", "a"), ("equal", "+1 (5)", "b")]
    assert today._by_verdict(found) == "equal on a and b, behind on c: -2 (5)"


def test_every_set_s_deepest_network_is_told(monkeypatch):
    gap = today.Gap(1.0, 0.5, 1.5, 0.4, 1.6, seeds=6, least=0.8, most=1.2)
    names = ("digits", "convnet of 02"), ("digits", "convnet of 16"), ("cifar10", "convnet of 08")
    deep = {(*each, "detached - fixed_codes"): (gap, 0.01) for each in names}
    made = iter([{}, deep])
    monkeypatch.setattr(today.ladder_tables, "contrast_gaps", lambda rows: next(made))
    told = today._ladder()
    assert "digits x convnet of 16" in told
    assert "cifar10 x convnet of 08" in told
    assert "convnet of 02" not in told

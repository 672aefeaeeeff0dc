"""The table of contrasts is made of the records, and leaves out what has none."""

from alkit.data.paths import root
from alkit.records import results
from studies import dtp_tables, ladder_tables, named, publish


def test_a_row_a_contrast_that_has_runs():
    table = named.contrasts().set_index(["notebook", "set", "contrast"])
    assert table.index.is_unique
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    for (*setting, name), (gap, p) in gaps.items():
        row = table.loc["[52](notebooks/52_training.ipynb)", ", ".join(setting), name]
        assert row["difference (n)"] == f"{gap} points"
        assert row["p, Holm"] == (f"{p:.3f}" if p >= 0.001 else "< 0.001")
    text = publish.markdown(named.contrasts())
    assert f"<!-- contrasts -->\n{text}\n<!-- /contrasts -->" in (root() / "RESULTS.md").read_text()


def test_a_row_a_hypothesis_that_has_runs():
    table = named.hypotheses()
    kept = results.load("06_label_ladder", "cpu")
    assert list(table.contrast) == list(ladder_tables.explored(kept).contrast)
    assert list(table.columns) == [
        "hypothesis", "set", "contrast", "rates", "difference (n)", "bootstrap", "p, Holm",
        "verdict",
    ]  # fmt: skip
    told = f"<!-- hypotheses -->\n{publish.markdown(table)}\n<!-- /hypotheses -->"
    assert told in (root() / "RESULTS.md").read_text()


def test_what_the_runs_took_is_counted_from_the_records():
    table = named.spent()
    kept = results.load("32_resnet_accuracy", "cpu")
    row = table.set_index("notebook").loc["[32](notebooks/32_resnet_accuracy.ipynb)"]
    assert row.set == "cifar10, resnet20"
    assert row["rates tried"] == "0.01, 0.03, 0.1, 0.3"
    assert row.runs == (kept.metric == "accuracy").sum() + 4 * 4  # four cases at four rates
    hours = kept.value[kept.metric == "train_s"].astype(float).sum() / 3600
    assert row["core-hours"] == f"{hours:.2g}"
    assert set(row.processors.split(", ")) <= {"Intel(R) Xeon(R) Processor", "AMD EPYC"}
    told = f"<!-- spent -->\n{publish.markdown(table)}\n<!-- /spent -->"
    assert told in (root() / "RESULTS.md").read_text()


def test_a_record_that_is_not_there_has_no_row(monkeypatch):
    kept = results.load
    monkeypatch.setattr(
        results, "load", lambda name, preset: kept(name, preset)[: 0 if name[:2] == "52" else None]
    )
    assert not any("52" in each for each in named.contrasts().notebook)


def test_one_seed_has_no_p(monkeypatch):
    kept = results.load

    def first_seed(name, preset):
        rows = kept(name, preset)
        return rows[rows.seed.isin([0, 100])] if name == "52_training" else rows

    monkeypatch.setattr(results, "load", first_seed)
    table = named.contrasts()
    own = table[table.notebook.str.startswith("[52]")]
    assert len(own)
    assert set(own["p, Holm"]) == {""}
    assert set(own.verdict) == {"undecided"}

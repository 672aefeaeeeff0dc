"""README's table of contrasts is made of the records, and leaves out what has none."""

from alkit.data.paths import root
from alkit.records import results
from studies import dtp_tables, named, publish


def test_a_row_a_contrast_that_has_runs():
    table = named.contrasts().set_index(["notebook", "set", "contrast"])
    assert table.index.is_unique
    gaps = dtp_tables.contrast_gaps(results.load("52_training", "cifar"))
    for (*setting, name), (gap, p) in gaps.items():
        row = table.loc["[52](notebooks/52_training.ipynb)", ", ".join(setting), name]
        assert row["difference (n)"] == f"{gap} points"
        assert row["p, Holm"] == (f"{p:.3f}" if p >= 0.001 else "< 0.001")
    text = publish.markdown(named.contrasts())
    assert f"<!-- contrasts -->\n{text}\n<!-- /contrasts -->" in (root() / "README.md").read_text()


def test_a_record_that_is_not_there_has_no_row(monkeypatch):
    kept = results.load
    monkeypatch.setattr(
        results, "load", lambda name, preset: kept(name, preset)[: 0 if name[:2] == "52" else None]
    )
    assert not any("52" in each for each in named.contrasts().notebook)

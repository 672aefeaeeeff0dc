"""README is short and shows what runs."""

import re

import pytest
import torch

from alkit.data.paths import root
from alkit.records.contents import course

LINES, BYTES, PYTHON_BY, WORDS_BEFORE = 200, 14_000, 45, 130


def page(name: str = "README.md") -> str:
    return (root() / name).read_text(encoding="utf-8")


def blocks(name: str = "README.md") -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def section(name: str, of: str = "README.md") -> str:
    return re.search(f"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", page(of), re.DOTALL)[1]


def test_it_is_short_and_python_comes_early():
    text = page()
    before = text[: text.index("```python")]
    assert text.count("\n") <= LINES
    assert len(text.encode()) <= BYTES
    assert before.count("\n") < PYTHON_BY
    assert len(before.split()) <= WORDS_BEFORE


def test_it_lists_the_course():
    assert section("course") == course()


@pytest.fixture
def run(capsys):
    """What README's first two programs leave behind."""
    seen: dict = {}
    torch.manual_seed(0)
    exec(blocks()[0], seen)
    return seen


def test_the_first_program_prints_two_numbers(run, capsys):
    lines = capsys.readouterr().out.split()
    assert lines[::2] == ["bp", "al_pipeline"]
    assert all(abs(float(each) - 0.9) < 0.06 for each in lines[1::2]), lines


def test_the_same_blocks_by_any_method_saved_and_loaded(run, capsys, tmp_path, monkeypatch):
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    exec(blocks()[1], run)
    *lines, loaded = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["bp", "al_pipeline", "pipedream", "splitfed"]
    assert all(float(line.split()[-1]) > 0.6 for line in lines), lines  # chance is 0.33
    assert re.fullmatch(r"tensor\(0\.[6-9]\d*\)", loaded)


def test_layers_by_hand_give_the_number_that_is_named(run):
    exec(blocks()[2], run)
    named = float(re.search(r"# about ([0-9.]+)", blocks()[2])[1])
    accuracy = (run["model"].predict(run["x"]).argmax(1) == run["y"]).float().mean()
    assert abs(accuracy.item() - named) < 0.05


def test_a_transformer_that_freezes(capsys):
    (code,) = [block for block in blocks("docs/guide.md") if "alkit.elastic" in block]
    seen: dict = {}
    exec(code, seen)
    assert len(seen["record"].losses) == 9
    assert "TRANSFORM frozen 0->2/4" in capsys.readouterr().out


def test_targets_instead_of_gradients(capsys):
    (code,) = [block for block in blocks("docs/guide.md") if "dtp.network" in block]
    exec(code, {})
    assert "SHA-256 of all weights: " in capsys.readouterr().out

"""What the README shows runs, and gives the number that it names."""

import re

import torch

from alkit.data.paths import root


def test_your_own_model():
    text = (root() / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    named = float(re.search(r"# about ([0-9.]+);", code).group(1))
    seen: dict = {}
    torch.manual_seed(0)
    exec(code, seen)  # the page's own words
    accuracy = (seen["model"].predict(seen["x"]).argmax(1) == seen["y"]).float().mean()
    assert abs(accuracy.item() - named) < 0.05


def test_the_same_blocks_by_any_method_saved_and_loaded(capsys, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (root() / "README.md").read_text(), re.DOTALL)
    seen: dict = {}
    torch.manual_seed(0)
    exec(blocks[0], seen)
    exec(blocks[1], seen)
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[0] for line in lines] == ["bp", "al_pipeline", "pipedream", "splitfed"]
    assert all(float(line.split()[-1]) > 0.6 for line in lines), lines  # chance is 0.33
    monkeypatch.chdir(tmp_path)
    exec(blocks[2], seen)
    assert "alkit.save" in blocks[2]
    assert re.fullmatch(r"tensor\(0\.[6-9]\d*\)", capsys.readouterr().out.strip())


def test_a_transformer_that_freezes(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (root() / "README.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "alkit.elastic" in block]
    seen: dict = {}
    exec(code, seen)
    assert len(seen["record"].losses) == 9
    assert "TRANSFORM frozen 0->2/4" in capsys.readouterr().out

"""What all rooms stand on: arguments, pairs, what is near, files that are whole at any moment."""

import subprocess
import sys

import pytest
import torch
from filelock import Timeout
from torch import nn

import alkit
from alkit.base.arguments import check_whole
from alkit.base.files import locked, replacing
from alkit.base.tree import near
from tests.helpers import WIDTH, dense_model, made_batches

X, Y = made_batches(1)[0]


def fitted(method, batches=((X, Y),), **own):
    return lambda: alkit.fit([nn.Linear(WIDTH, 3)], batches, method=method, progress=False, **own)


REFUSED = [
    (fitted("seq", [(X, X, Y)]), "got tuple of 3: several inputs are a tuple in it"),
    (fitted("seq", [torch.zeros(2, WIDTH)]), "must be a pair"),  # two samples are none
    (lambda: check_whole(workers=2.0), "workers is 2.0: it must be a whole number"),
    (lambda: check_whole(threads=1, workers=True), "workers is True: it must be a whole number"),
    (lambda: dense_model(1)[0].set_lr("enc", "0.1"), "lr is '0.1': it must be a number"),
    (fitted("splitfed", clpi=1), "unknown settings clpi.*: there are .*seed"),
    (fitted("elastic", freze=1), "unknown settings freze .did you mean 'freeze'"),
    (fitted("pipdream"), r"unknown method 'pipdream' \(did you mean 'pipedream'"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_a_file_takes_its_place_when_the_block_has_ended_and_links_stay(tmp_path):
    path, link = tmp_path / "made" / "table.csv", tmp_path / "link.csv"
    link.symlink_to(path)
    for place, content in ((path, "old"), (link, "new")):
        with replacing(place) as partial:
            partial.write_text(content)
            assert not path.exists() or path.read_text() == "old"
        assert path.read_text() == content

    def half():
        with replacing(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text() == "new"
    assert link.is_symlink()
    assert [*path.parent.iterdir()] == [path]


def test_a_lock_ends_with_its_process_and_removes_what_killed_runs_left(tmp_path):
    path = tmp_path / "run.pt"
    kept = [".other.pt.a1.partial", ".run.pt.lock", ".runxpt.a1.partial", "run.pt"]
    code = "import sys, time; from alkit.base.files import locked\n"
    code += f"with locked({str(path)!r}): print('held', flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with other:
        assert other.stdout.readline() == "held\n"
        for name in [".run.pt.a1.partial", *kept]:
            (tmp_path / name).touch()
        with pytest.raises(Timeout, match="run.pt.lock"), locked(path):
            pass
        other.kill()
    for _ in range(2):
        with locked(path):
            assert sorted(each.name for each in tmp_path.iterdir()) == kept
            with pytest.raises(Timeout, match="run.pt.lock"), locked(path):
                pass


@pytest.mark.parametrize(("kind", "share"), [(torch.float32, 1e-3), (torch.float16, 1e-2)])
def test_near_is_within_the_rounding_of_a_type(kind, share):
    inside, outside = (
        torch.full((4,), 100 * (1 + each * share), dtype=kind) for each in (0.9, 1.2)
    )
    one = torch.full((4,), 100.0, dtype=kind)
    assert near(one, inside)
    assert not near(one, outside)

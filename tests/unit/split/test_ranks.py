"""Ranks end in the bits of one process, also if one of them dies; lanes overlap between them."""

import hashlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import alkit
from alkit.engine.launch import RankFailed
from alkit.split import results
from alkit.split.half import SGD
from tests import machines
from tests.unit.split.helpers import samples, units

X, Y = samples(41)
CASES = {
    "pipelearn": {"micro": 4, "cuts": [2]},
    "longer": {"micro": 3, "cuts": [1], "epochs": 3},
    "alone": {"micro": 3, "cuts": [4]},
    "without a head": {"micro": 3, "cuts": [0]},
    "fed": {"method": "fed"},
    "central": {"method": "central"},
    "three": {"method": "splitfed", "workers": 3},
    "every step": {"micro": 2, "aggregate_every": 1, "epochs": 1},
    "rates": {
        "micro": 2,
        "scheduler": lambda each: torch.optim.lr_scheduler.ReduceLROnPlateau(each, patience=0),
    },
}


def fit(name="pipelearn", **options):
    torch.manual_seed(0)
    own = {"method": "pipelearn", "batch_size": 8, "epochs": 2, "lr": 0.05, "progress": False}
    own |= {"optimizer": SGD} | CASES[name] | options
    return alkit.fit(units("batch", dropout=0.3), (X, Y), (X[:16], Y[:16]), (X[16:], Y[16:]), **own)


def digest(record):
    found = [*record.model.state_dict().values(), record.test_correct, record.losses]
    return hashlib.sha256(b"".join(own.numpy().tobytes() for own in found)).hexdigest()


def columns(record):
    times = [name for name in record.history if name.endswith("_s")]
    return record.history.drop(columns=times)


@pytest.mark.parametrize("name", CASES)
def test_ranks_end_in_the_bits_of_one_process(name):
    here = fit(name)
    there = fit(name, ranks=1 + CASES[name].get("workers", 2))
    assert digest(here) == digest(there)
    assert columns(here).equals(columns(there))
    assert there.details.rounds == here.details.rounds


def test_lanes_of_both_sides_are_in_one_table(tmp_path):
    path = tmp_path / "events.csv"
    record = fit("longer", ranks=3, events=str(path))
    seen = results.read(path, 2)
    kinds = {(i.resource, i.kind) for i in seen.intervals}
    for at in (0, 1):
        assert {(f"uplink {at}", "send"), (f"downlink {at}", "send")} <= kinds
        ran = [i for i in seen.intervals if i.resource == f"device {at}" and i.kind == "forward"]
        assert [(i.batch, i.micro) for i in ran] == [(b, m) for b in range(9) for m in range(3)]
    # what crosses has left before it arrives, and is worked on when it has
    ends = {(i.resource, i.kind, i.batch, i.micro): i for i in seen.intervals}
    for at, batch, micro in ((a, b, m) for a in (0, 1) for b in range(9) for m in range(3)):
        sent = ends[f"uplink {at}", "send", batch, micro]
        made = ends[f"device {at}", "forward", batch, micro]
        used = ends[f"server {at}", "forward", batch, micro]
        assert made.end_s - 1e-3 < sent.end_s < used.start_s + 1e-3  # clocks agree to so much
    table = results.table("x", record, seen, 1.0)
    assert (table[["upload", "download", "comm amount", "client_forward"]] > 0).all(axis=None)
    assert table["train_loss"].map(len).tolist() == [3, 3]


class Fails(torch.nn.Module):
    def forward(self, x):
        if self.training:
            raise ArithmeticError("a unit that fails")
        return x


@pytest.mark.parametrize(("unit", "rank"), [(0, "1|2"), (3, "0")])
def test_a_fault_of_a_device_or_of_a_tail_ends_all(unit, rank):
    made = units()
    made[unit] = torch.nn.Sequential(made[unit], Fails())
    with pytest.raises(RankFailed, match=f"rank ({rank}) raised ArithmeticError: a unit that fai"):
        alkit.fit(made, (X, Y), method="pipelearn", cuts=[2], ranks=3, progress=False)


def test_a_rank_that_dies_costs_the_open_round(tmp_path):
    wanted = digest(fit("longer"))
    for dies in ("1:5", "0:9"):  # a device, and the server, at a step of an optimiser
        path = tmp_path / dies[0]
        command = machines.torchrun("--standalone", "--nproc-per-node=3", "--max-restarts=1")
        done = subprocess.run(
            [*command, __file__, str(path), dies],
            env=machines.environment(GLOO_SOCKET_IFNAME="lo"),
            capture_output=True,
            text=True,
            timeout=machines.LIMIT_S,
            check=False,
        )
        found = re.findall(r"^(\d) (\d) (\w+)$", done.stdout, re.MULTILINE)
        assert found == [("0", "1", wanted)], done.stderr


def _main(path, dies):
    rank, count = map(int, dies.split(":"))
    calls, mark = iter(range(1, count + 1)), Path(f"{path}.died")

    def after_step(*_):
        if next(calls, None) == count and dist.get_rank() == rank and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    torch.set_num_threads(1)
    with alkit.torchrun_group():
        register_optimizer_step_post_hook(after_step)
        record = fit("longer", checkpoint=path)
        if dist.get_rank() == 0:
            print(0, os.environ["TORCHELASTIC_RESTART_COUNT"], digest(record), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])

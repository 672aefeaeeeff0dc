"""Server and devices as processes: the command, its files, and what happens when one is killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pandas as pd
import pytest
import safetensors.torch
import torch

import alkit.split
from alkit.engine import checkpoint
from alkit.records.cli import main
from alkit.split import data
from alkit.split.config import read
from studies.split.links import SERVER_ADDRESS

CONFIG = """
name = "digits"
port = PORT
devices = 2
data = "digits"
model = "VGG5"
norm = "group"
batch = 50
epochs = EPOCHS
cut = 2
micro = 4
join_s = 60
"""
LIMIT_S = 600  # for liveness: nothing is said about speed


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Run:
    """The processes of one run; none outlives the test."""

    def __init__(self, folder, epochs=2, links=None, **changes):
        self.folder, self.links, text = folder, links, CONFIG
        if links is not None:
            text += f'server_address = "{SERVER_ADDRESS}"\n'
        text = text.replace("PORT", str(free_port())).replace("EPOCHS", str(epochs))
        for key, value in changes.items():
            text = re.sub(rf"^{key} = .*\n", "", text, flags=re.MULTILINE) + f"{key} = {value}\n"
        self.path = folder / "run.toml"
        self.path.write_text(text)
        self.processes = []

    def start(self, who, *more):
        command = [sys.executable, "-m", "alkit", "split", who, "--config", str(self.path)]
        command += ["--folder", str(self.folder / "out"), *map(str, more)]
        command.append("--quiet")
        if self.links is not None:
            place = "server" if who == "server" else int(more[-1])
            command = self.links.inside(place, command)
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.processes.append(process)
        return process

    def __enter__(self):
        self.server = self.start("server")
        self.devices = [self.start("device", "--index", at) for at in (0, 1)]
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.communicate()

    def wait(self, *processes):
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        assert not any(process.returncode for process in processes), "\n".join(said)

    def checkpoint(self):
        """What the server has written, or None."""
        path = self.folder / "out" / "server.pt"
        return checkpoint.load(path) if path.exists() else None

    def round(self):
        found = self.checkpoint()
        return found["round"] if found else 0

    def after_rounds(self, count, look_s=0.05, limit_s=LIMIT_S):
        """Wait until so many rounds are in the checkpoint, which is read at every look."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            if self.round() >= count:
                return
            if self.server.poll():
                pytest.fail(f"the server has ended: {self.server.communicate()[0]}")
            time.sleep(look_s)
        pytest.fail(f"no {count} rounds in {limit_s} s")

    def model(self):
        return safetensors.torch.load_file(self.folder / "out" / "model.safetensors")

    def in_process(self):
        config = read(self.path)
        units = data.network(config)
        settings = config.settings(len(units))
        parts = [data.part_of(config, at) for at in (0, 1)]
        options = {key: getattr(settings, key) for key in ("epochs", "batch", "least", "seed")}
        return alkit.split.train(
            units,
            [(part.x, part.y) for part in parts],
            cut=settings.cuts,
            micro=settings.micros,
            **options,
        )


def same(first, second) -> bool:
    return all(torch.equal(first[key], second[key]) for key in first)


def test_processes_end_in_the_bits_of_threads(tmp_path):
    with Run(tmp_path) as run:
        run.wait(run.server, *run.devices)
        assert same(run.model(), run.in_process().state)
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(table["client_index"]) == [0, 1]
    assert (table["test_accuracy"] > 0.2).all()
    assert (table["comm amount"] > 1).all()
    assert (table["upload"] > 0).all()
    plain = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(plain["rounds"]) == 2
    assert plain["config"]["model"] == "VGG5"
    left = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert left == ["events.csv", "model.safetensors", "results.csv", "results.json"]


def test_a_killed_device_comes_back_and_nothing_has_happened(tmp_path):
    with Run(tmp_path, epochs=4) as run:
        run.after_rounds(2)
        run.devices[1].send_signal(signal.SIGKILL)
        again = run.start("device", "--index", 1)
        run.wait(run.server, run.devices[0], again)
        assert same(run.model(), run.in_process().state)


def test_a_killed_server_comes_back_and_nothing_has_happened(tmp_path):
    with Run(tmp_path, epochs=4) as run:
        run.after_rounds(2)
        run.server.send_signal(signal.SIGKILL)
        run.server.wait()
        again = run.start("server")
        run.wait(again, *run.devices)
        assert same(run.model(), run.in_process().state)


def test_the_profiler_chooses(tmp_path):
    with Run(tmp_path, epochs=1, profile=1, uplink_mbit=0.001, downlink_mbit=0.001) as run:
        run.wait(run.server, *run.devices)
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    # on such a link the pixels of an epoch, 140 KB, are less than the weights up and down, and
    # what was measured on this machine, busy or not, is nothing beside either
    assert (table["cut"] == 0).all()


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("server --on meta", "unknown device 'meta': this machine has cpu"),
        ("device --index 1", "0 to 0"),
    ],
)
def test_what_does_not_start(tmp_path, capsys, who, words):
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\n')
    assert main(["split", *who.split(), "--config", str(path)]) == 2
    assert words in capsys.readouterr().err

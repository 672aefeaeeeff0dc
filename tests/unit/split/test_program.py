"""Server and devices as processes: the command, its files, and what happens when one is killed."""

import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import nullcontext

import pandas as pd
import psutil
import pytest
import safetensors.torch

import alkit
from alkit.engine import checkpoint
from alkit.split import program
from alkit.split.half import SGD, state_of
from alkit.split.published import ALIASES, read
from studies.split.links import SERVER_ADDRESS, Links, LinksUnavailable
from tests.unit.split.helpers import equal

CONFIG = """
name = "digits"
port = PORT
devices = 2
data = "digits"
data_size = 200
model = "VGG5"
norm = "group"
batch = 25
epochs = 4
cut = 2
micro = 4
validate = true
"""
LIMIT_S = 600  # for liveness: nothing is said about speed


def free_port():
    """Return one of two neighbouring ports that are free."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        port = first.getsockname()[1]
        try:
            second.bind(("127.0.0.1", port + 1))
        except OSError:
            return free_port()
        return port


class Run:
    """The processes of one run, over loopback or over links; none outlives the test."""

    def __init__(self, folder, links):
        self.folder, self.links, self.processes = folder, links, []
        text = CONFIG.replace("PORT", str(free_port()))
        self.path = folder / ("run.toml" if links is None else "config.json")
        if links is not None:  # as the published code writes it
            words = {own: published for published, own in ALIASES.items()}
            found = tomllib.loads(text) | {"server_address": SERVER_ADDRESS}
            text = json.dumps({words.get(ALIASES.get(n, n), n): own for n, own in found.items()})
        self.path.write_text(text)

    def start(self, *who):
        command = [sys.executable, "-m", "alkit", "split", *who, "--quiet"]
        command[5:5] = [str(self.path), "--folder", str(self.folder / "out")]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        own = {"OMP_NUM_THREADS": "1"}
        if self.links is not None:
            command = self.links.inside(int(who[-1]) if who[1:] else "server", command)
            own["GLOO_SOCKET_IFNAME"] = "d0" if who[1:] else "s0"
        process = subprocess.Popen(command, env=os.environ | own, **pipe)
        self.processes.append(process)
        return process

    def __enter__(self):
        self.server = self.start("server")
        self.devices = [self.start("device", "-i", str(at)) for at in (0, 1)]
        return self

    def __exit__(self, *_):
        for process in self.processes:
            kill(process)
            process.communicate()

    def wait(self, *processes):
        said = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        assert not any(process.returncode for process in processes), "\n".join(said)

    def after_round(self):
        """Wait until a round is in the checkpoint, which is read at every look."""
        end_s, path = time.monotonic() + LIMIT_S, self.folder / "out" / "server.pt"
        while time.monotonic() < end_s and self.server.poll() is None:
            if path.exists() and checkpoint.load(path)["rows"]:
                return
            time.sleep(0.02)
        pytest.fail(f"no round, or too many: {self.server.poll()}")

    def in_process(self):
        config = read(self.path)
        data = program.loaded(config)
        options = {
            "method": "pipelearn",
            "workers": 2,
            "optimizer": SGD,
            "batch_size": config.batch,
        }
        names = ("micro", "epochs", "lr", "seed", "data_size")
        options |= {name: getattr(config, name) for name in names} | {"cuts": [*config.cuts]}
        return alkit.fit(program.network(config, data), data.train, progress=False, **options)


def kill(process):
    """Kill a party: torchrun, and the rank that it has started."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()


@pytest.mark.machines
@pytest.mark.parametrize("shaped", [False, True])
def test_a_killed_device_that_is_started_again_costs_the_open_round(tmp_path, shaped):
    """Processes end in the bits of threads, and leave their tables."""
    try:
        links = Links(2, 10, 25) if shaped else nullcontext()
    except LinksUnavailable as error:
        pytest.skip(f"no real links here: {error}")
    with links as star, Run(tmp_path, star) as run:
        run.after_round()
        kill(run.devices[1])
        run.wait(run.server, run.devices[0], run.start("device", "-i", "1"))
        there = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
        assert equal(there, state_of(run.in_process().model))
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(table["client_index"]) == [0, 1]
    assert (table["test_accuracy"] > 0.2).all()
    assert (table["comm amount"] > 1).all()
    assert (table[["upload", "client_data_load", "aggregate"]] > 0).all(axis=None)
    for name in ("train_loss", "train_acc", "val_loss", "val_acc"):
        assert table[name].map(json.loads).map(len).tolist() == [4, 4]
    plain = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(plain["rounds"]) == 4
    assert plain["config"]["model"] == "VGG5"
    left = "model.safetensors results.csv results.json .server.pt.lock events.csv".split()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*left}

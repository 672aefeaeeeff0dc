"""Server and devices as processes: the command, its files, and what happens when one is killed."""

import json
import os
import re
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
import torch

import alkit
from alkit.command import main
from alkit.engine import checkpoint
from alkit.split import program
from alkit.split.half import SGD, state_of
from alkit.split.published import ALIASES, read
from studies.split.links import SERVER_ADDRESS, Links, LinksUnavailable

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
"""
LIMIT_S = 600  # for liveness: nothing is said about speed


def free_port() -> int:
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

    def __init__(self, folder, epochs=2, links=None, **changes):
        self.folder, self.links = folder, links
        changes |= {} if links is None else {"server_address": f'"{SERVER_ADDRESS}"'}
        text = CONFIG.replace("PORT", str(free_port())).replace("EPOCHS", str(epochs))
        for key, value in changes.items():
            text = re.sub(rf"^{key} = .*\n", "", text, flags=re.MULTILINE) + f"{key} = {value}\n"
        self.path = folder / ("run.toml" if links is None else "config.json")
        if links is not None:  # as the published code writes it
            words = {own: published for published, own in ALIASES.items()}
            found = {ALIASES.get(n, n): own for n, own in tomllib.loads(text).items()}
            text = json.dumps({words.get(n, n): own for n, own in found.items()})
        self.path.write_text(text)
        self.processes = []

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

    def after_rounds(self, count):
        """Wait until so many rounds are in the checkpoint, which is read at every look."""
        end_s, path = time.monotonic() + LIMIT_S, self.folder / "out" / "server.pt"
        while time.monotonic() < end_s:
            if path.exists() and len(checkpoint.load(path)["rows"]) >= count:
                return
            if self.server.poll() is not None:
                pytest.fail(f"the server has ended: {self.server.communicate()[0]}")
            time.sleep(0.05)
        pytest.fail(f"no {count} rounds in {LIMIT_S} s")

    def model(self):
        return safetensors.torch.load_file(self.folder / "out" / "model.safetensors")

    def in_process(self):
        config = read(self.path)
        data = program.loaded(config)
        return alkit.fit(
            program.network(config, data),
            data.train,
            method="pipelearn",
            workers=2,
            cuts=[2],
            micro=4,
            batch_size=50,
            epochs=config.epochs,
            optimizer=SGD,
            lr=config.lr,
            seed=config.seed,
            progress=False,
        )


def kill(process) -> None:
    """Kill a party: torchrun, and the rank that it has started."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()


def same(run) -> bool:
    there, here = run.model(), state_of(run.in_process().model)
    return there.keys() == here.keys() and all(torch.equal(there[key], here[key]) for key in here)


def test_processes_end_in_the_bits_of_threads(tmp_path):
    with Run(tmp_path, validate="true") as run:
        run.wait(run.server, *run.devices)
        assert same(run)
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(table["client_index"]) == [0, 1]
    assert (table["test_accuracy"] > 0.2).all()
    assert (table["comm amount"] > 1).all()
    assert (table[["upload", "client_data_load", "aggregate"]] > 0).all(axis=None)
    for name in ("train_loss", "train_acc", "val_loss", "val_acc"):
        assert table[name].map(json.loads).map(len).tolist() == [2, 2]
    plain = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(plain["rounds"]) == 2
    assert plain["config"]["model"] == "VGG5"
    left = "model.safetensors results.csv results.json .server.pt.lock events.csv".split()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*left}


@pytest.mark.parametrize("shaped", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_killed_device_that_is_started_again_costs_the_open_round(tmp_path, shaped):
    try:
        links = Links(2, 10, 25) if shaped else nullcontext()
    except LinksUnavailable as error:
        pytest.skip(f"no real links here: {error}")
    with links as star, Run(tmp_path, 4, star) as run:
        run.after_rounds(1)
        kill(run.devices[1])
        again = run.start("device", "-i", "1")
        run.wait(run.server, run.devices[0], again)
        assert same(run)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("server FILE --on meta", "unknown device 'meta': this machine has cpu"),
        ("device FILE -i 1", "0 to 0"),
        ("server FILE.other", "No such file"),
    ],
)
def test_what_does_not_start(tmp_path, capsys, who, words):
    path = tmp_path / "run.toml"
    path.write_text('data = "digits"\n')
    assert main(["split", *who.replace("FILE", str(path)).split()]) == 2
    assert words in capsys.readouterr().err

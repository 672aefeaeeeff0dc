"""Server and devices as processes: configurations, and what happens when one is killed."""

import os
import socket
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
import safetensors.torch

import alkit
from alkit.command import main
from alkit.engine import checkpoint
from alkit.split import program
from alkit.split.half import SGD, state_of
from alkit.split.published import read
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
    """The processes of one run, over loopback; none outlives the test."""

    def __init__(self, folder):
        self.folder, self.path, self.processes = folder, folder / "run.toml", []
        self.path.write_text(CONFIG.replace("PORT", str(free_port())))

    def start(self, *who):
        command = [sys.executable, "-m", "alkit", "split", *who, "--quiet"]
        command[5:5] = [str(self.path), "--folder", str(self.folder / "out")]
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipe)
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
        options = {"method": "pipelearn", "workers": 2, "optimizer": SGD}
        options |= {"batch_size": config.batch, "cuts": [*config.cuts]}
        names = ("micro", "epochs", "lr", "seed", "data_size")
        options |= {name: getattr(config, name) for name in names}
        return alkit.fit(program.network(config, data), data.train, progress=False, **options)


def kill(process):
    """Kill a party: torchrun, and the rank that it has started."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.kill()


@pytest.mark.machines
def test_a_killed_device_that_is_started_again_costs_the_open_round(tmp_path):
    """Processes end in the bits of threads, and leave their tables."""
    with Run(tmp_path) as run:
        run.after_round()
        kill(run.devices[1])
        run.wait(run.server, run.devices[0], run.start("device", "-i", "1"))
        there = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
        assert equal(there, state_of(run.in_process().model))
    table = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(table["client_index"]) == [0, 1]
    assert (table[["test_accuracy", "comm amount", "upload", "aggregate"]] > 0).all(axis=None)


# ---- files


BAD = [
    ("batch = true", "is no int"),
    ("cut = 1\nlayer_num_on_client = 2", "set twice"),
    ("lr = nan", "lr is nan"),
    ("uplink_mbit = inf", "uplink_mbit is inf"),
    ("aggregate_every = -2", "at least -1"),
    ("immediate_update = true", "immediate_update is not built here"),
    ("same_data_size_for_each_client = 'no'", "no bool"),
]


@pytest.mark.parametrize(("text", "words"), BAD)
def test_a_file_that_would_mean_something_else_is_refused(tmp_path, text, words):
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        read(tmp_path / "run.toml")


@pytest.mark.parametrize(("more", "size"), [("", 1000), ("true", 1000), ("false", 250)])
def test_a_size_is_of_each_device_unless_the_file_says_otherwise(tmp_path, more, size):
    text = "client_num = 4\ndata_size = 1000\nthread_num = -1\n"
    text += f"same_data_size_for_each_client = {more}\n" if more else ""
    (tmp_path / "run.toml").write_text(text)
    config = read(tmp_path / "run.toml")
    assert (config.data_size, config.threads) == (size, 1)


def test_a_device_that_is_not_there_does_not_start(tmp_path, capsys):
    (path := tmp_path / "run.toml").write_text('data = "digits"\n')
    for words, said in (("server FILE --on meta", "device 'meta'"), ("device FILE -i 1", "0 to 0")):
        assert main(["split", *words.replace("FILE", str(path)).split()]) == 2
        assert said in capsys.readouterr().err

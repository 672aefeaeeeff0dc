"""Split learning as the programs do it: a server and two devices, here three processes."""

import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

with socket.socket() as probe:  # a port that is free
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]

CONFIG = f"""
port = {port}
devices = 2
data = "digits"
data_size = 400
model = "VGG5"
norm = "group"
batch = 50
epochs = 4
cut = 2                 # units on a device
micro = 2
"""

with TemporaryDirectory() as home:
    config = Path(home) / "run.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "alkit", "split"]
    options = ["--folder", str(Path(home) / "out"), "--quiet"]
    parties = [["server", config], ["device", config, "-i", "0"], ["device", config, "-i", "1"]]
    crew = [
        subprocess.Popen([*command, *party, *options], stdout=subprocess.DEVNULL)
        for party in parties
    ]
    try:
        print("ended with:", [each.wait(timeout=300) for each in crew])
    finally:
        for each in crew:
            each.terminate()
    table = pd.read_csv(Path(home) / "out" / "results.csv")  # a row per device
    print(table[["client_index", "cut", "micro", "test_accuracy"]].round(2).to_string(index=False))

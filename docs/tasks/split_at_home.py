"""Split learning by a file: torchrun ... split_at_home.py RUN.json, on the server and each device.

Rank 0 is the server, and every other rank a device.
"""

import json
import sys
from functools import partial
from pathlib import Path

import torch

import alkit
from alkit.split import build, results

run = json.loads(Path(sys.argv[1]).read_text())
folder = Path(run["folder"])
data = alkit.datasets.load(run["data"])
if "augment" in run:
    data = data.augmented(run["augment"])
_, channels, side, _ = data.test.x.shape
sizes = {"channels": channels, "side": side, "norm": run["norm"]}
units = build(run["model"], data.num_classes, **sizes)  # every party builds the same

with alkit.torchrun_group():  # torchrun says who is who
    record = alkit.fit(
        units,
        data.train,
        test=data.test if run.get("test", True) else None,
        optimizer=partial(torch.optim.SGD, momentum=0.9),  # as published
        checkpoint=folder / "run.ckpt",
        events=str(folder / "events.csv"),  # who did what when
        progress=False,
        **run["fit"],
    )
    if torch.distributed.get_rank() == 0:
        devices = torch.distributed.get_world_size() - 1
        seen = results.read(folder / "events.csv", devices)
        table = results.table(run["name"], record, seen, record.seconds)
        table.to_csv(folder / "results.csv", index=False)  # a row per device
        record.history.to_csv(folder / "history.csv", index=False)
        shown = table[["client_index", "cut", "micro", "test_accuracy"]].round(2)
        print(shown.to_string(index=False))

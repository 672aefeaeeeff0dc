"""Times and results of a run on ranks, as a table with a row a device.

The published columns are here under their names. Seconds are sums over the run, `comm amount` is
MiB in messages, both ways, and lists are by round. Other columns are cut, micro-batches and idle
shares by lane. Overlapping transfers of a link are not added up; one ends when its receiver takes
it.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from alkit.engine.trainer import Record
from alkit.schedule.timeline import Interval, Timeline
from alkit.split.schedule import LANES

SECONDS = {  # published column: lane and kind of the tasks that it adds up
    "server_forward": ("server", "forward"),
    "server_backward": ("server", "backward"),
    "server_update": ("server", "update"),
    "client_data_load": ("device", "load"),
    "client_forward": ("device", "forward"),
    "client_backward": ("device", "backward"),
    "client_update": ("device", "update"),
    "aggregate": ("server", "average"),
}


def add(path: str | Path, timeline: Timeline, *, first: bool) -> None:
    """Write the intervals of a round to a table, which begins with the first round."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(timeline.intervals, columns=Interval._fields)
    frame.to_csv(path, index=False, mode="w" if first else "a", header=first)


def read(path: str | Path, devices: int) -> Timeline:
    """Return the timeline of all lanes, from the table that `add` wrote."""
    rows = pd.read_csv(path).itertuples(index=False)
    names = [f"{lane} {at}" for at in range(devices) for lane in LANES]
    return Timeline.of((Interval(*row) for row in rows), names)


def table(name: str, record: Record, seen: Timeline, total_s: float) -> pd.DataFrame:
    """Return one row a device, from the timeline of all rounds, and the seconds of the server."""
    settings = record.details.settings
    history, rows = record.history.round(4), []
    for at in range(settings.devices):
        lanes = {lane: f"{lane} {at}" for lane in LANES}
        own = [i for i in seen.intervals if i.resource in lanes.values()]
        timeline, spent = Timeline.of(own, lanes.values()), defaultdict[Any, float](float)
        for i in own:
            spent[i.resource.split()[0], i.kind] += i.end_s - i.start_s
        rounds = [each for each in record.details.rounds if at in each.losses]
        losses = [np.average(each.losses[at], weights=each.sizes[at]) for each in rounds]
        idle = {lane: timeline.idle_share(resource) for lane, resource in lanes.items()}
        rows.append(
            {
                "experiment_name": name,
                "client_index": at,
                **{column: spent[which] for column, which in SECONDS.items()},
                "upload": timeline.busy_s(f"uplink {at}"),
                "download": timeline.busy_s(f"downlink {at}"),
                "total": total_s,
                "comm amount": sum(i.bytes for i in own) / 2**20,
                "server_idle": idle["server"] * timeline.span_s,
                "client_idle": idle["device"] * timeline.span_s,
                "test_accuracy": record.test_acc,
                "train_loss": [round(float(loss), 4) for loss in losses],
                "train_acc": [round(each.right[at] / sum(each.sizes[at]), 4) for each in rounds],
                "val_loss": history.get("val_loss", pd.Series()).tolist(),
                "val_acc": history.get("val_acc", pd.Series()).tolist(),
                "cut": settings.cut,
                "micro": settings.micro,
                **{f"{lane} idle": share for lane, share in idle.items()},
            }
        )
    return pd.DataFrame(rows)

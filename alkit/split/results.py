"""What a run took and gave, as a table with a row a device.

The published columns are here under their names (seconds are sums over the run; `comm amount` is
MiB in messages, both ways; lists are by round), and what they leave out: cut, micro-batches, idle
shares by lane, goodput, versions, seed. Overlapping transfers of a link are not added up.
"""

import json
import platform
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from alkit.data.files import replacing
from alkit.schedule.timeline import Interval, Timeline
from alkit.split.rounds import RoundRecord
from alkit.split.schedule import LANES
from alkit.split.settings import Settings

SECONDS = {  # published column: lane and kind of what it adds up
    "server_forward": ("server", "forward"),
    "server_backward": ("server", "backward"),
    "server_update": ("server", "update"),
    "client_data_load": ("device", "load"),
    "client_forward": ("device", "forward"),
    "client_backward": ("device", "backward"),
    "client_update": ("device", "update"),
    "upload": ("uplink", "send"),
    "download": ("downlink", "send"),
}


class Events:
    """A table of intervals that a run writes round by round, and forgets.

    Args:
        path: of the table; one that is there is of a run before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, record: RoundRecord) -> None:
        """Write what was seen in a round; the record keeps nothing of it."""
        first = (
            record.attendance and min(own.steps.start for own in record.attendance.values()) == 0
        )
        frame = pd.DataFrame(record.intervals, columns=Interval._fields)
        frame.to_csv(self.path, index=False, mode="w" if first else "a", header=first)
        record.intervals = []

    def read(self) -> list[Interval]:
        """Return all of it."""
        if not self.path.exists():
            return []
        return [Interval(*row) for row in pd.read_csv(self.path).itertuples(index=False)]


def table(
    name: str,
    settings: Settings,
    records: Sequence[RoundRecord],
    seen: Sequence[Interval],
    total_s: float,
) -> pd.DataFrame:
    """Return one row a device.

    Args:
        seen: in all rounds.
        total_s: seconds of the run on the server's clock.
    """
    rows = []
    for at in range(settings.devices):
        names = [f"{lane} {at}" for lane in LANES]
        timeline = Timeline.of((i for i in seen if i.resource in names), names)
        own = [record for record in records if at in record.attendance]
        last = own[-1].attendance[at] if own else None
        rows.append(
            {
                "experiment_name": name,
                "client_index": at,
                **_seconds(timeline, at),
                "total": total_s,
                "comm amount": sum(i.bytes for i in timeline.intervals) / 2**20,
                **_scores(records, own, at),
                "aggregate": sum(record.averaging_s for record in own),
                "cut": last.cut if last else None,
                "micro": last.micro if last else None,
                "rounds": len(own),
                **_lanes(timeline, at),
                "method": settings.method,
                "seed": settings.seed,
                "torch": torch.__version__,
                "python": platform.python_version(),
            }
        )
    return pd.DataFrame(rows)


def write(folder: Path, frame: pd.DataFrame, plain: dict[str, Any]) -> None:
    """Write `results.csv`, and `results.json` with everything else."""
    with replacing(folder / "results.csv") as partial:
        frame.to_csv(partial, index=False)
    with replacing(folder / "results.json") as partial:
        partial.write_text(json.dumps(plain, indent=1), encoding="utf-8")


def _seconds(timeline: Timeline, at: int) -> dict[str, float]:
    spent: defaultdict[tuple[str, str], float] = defaultdict(float)
    for i in timeline.intervals:
        spent[i.resource, i.kind] += i.end_s - i.start_s
    return {name: spent[f"{lane} {at}", kind] for name, (lane, kind) in SECONDS.items()}


def _scores(
    records: Sequence[RoundRecord], own: Sequence[RoundRecord], at: int
) -> dict[str, object]:
    """Return losses and accuracies by round; the last accuracy on the test part by itself."""

    def by_round(key: str) -> list[float]:
        return [record.scores[key] for record in records if key in record.scores]

    tested = by_round("accuracy")
    return {
        "test_accuracy": tested[-1] if tested else None,
        "train_loss": [round(r.mean_loss(at), 4) if r.losses[at] else None for r in own],
        "train_acc": [round(r.right[at] / max(1, r.weights[at]), 4) for r in own],
        "val_loss": [round(value, 4) for value in by_round("val_loss")],
        "val_acc": [round(value, 4) for value in by_round("val_acc")],
        "accuracy by round": [round(value, 4) for value in tested],
    }


def _lanes(timeline: Timeline, at: int) -> dict[str, float]:
    """Return seconds and shares that lanes were idle, and what the links carried a second."""
    idle = {lane: timeline.idle_share(f"{lane} {at}") for lane in LANES}
    found = {
        "server_idle": idle["server"] * timeline.span_s,
        "client_idle": idle["device"] * timeline.span_s,
        **{f"{lane} idle": share for lane, share in idle.items()},
    }
    for lane in ("uplink", "downlink"):
        name = f"{lane} {at}"
        bits = 8 * sum(i.bytes for i in timeline.intervals if i.resource == name)
        busy_s = timeline.busy_s(name)
        found[f"{lane} Mbit/s"] = bits / busy_s / 1e6 if busy_s else 0.0
    return found

"""What a run took and gave, as a table with a row a device.

The published columns are here under their names (seconds are sums over the run; `comm amount` is
MiB in messages, both ways; lists are by round), and what they leave out: cut, micro-batches, idle
shares by lane, goodput, versions, seed. Overlapping transfers of a link are not added up.
"""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from alkit.data.files import replacing
from alkit.schedule.timeline import Interval, Timeline
from alkit.split.round import RoundRecord
from alkit.split.schedule import LANES
from alkit.split.settings import Settings

__all__ = ["table", "write"]


def table(
    name: str, settings: Settings, records: Sequence[RoundRecord], total_s: float
) -> pd.DataFrame:
    """Return one row a device.

    Args:
        total_s: seconds of the run on the server's clock.
    """
    seen = [interval for record in records for interval in record.intervals]
    rows = []
    for at in range(settings.devices):
        own = [record for record in records if at in record.attendance]
        order = own[-1].attendance[at] if own else None
        rows.append(
            {
                "experiment_name": name,
                "client_index": at,
                **_seconds(seen, at),
                "total": total_s,
                "comm amount": sum(i.bytes for i in _of(seen, at)) / 2**20,
                **_scores(records, own, at),
                "aggregate": sum(record.averaging_s for record in own),
                "cut": order.cut if order else None,
                "micro": order.micro if order else None,
                "rounds": len(own),
                **_lanes(seen, at),
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


def _seconds(seen: Sequence[Interval], at: int) -> dict[str, float]:
    """Return the published sums."""
    columns = {
        "server_forward": ("server", ("forward",)),
        "server_backward": ("server", ("backward",)),
        "server_update": ("server", ("update",)),
        "client_data_load": ("device", ("load",)),
        "client_forward": ("device", ("forward",)),
        "client_backward": ("device", ("backward",)),
        "client_update": ("device", ("update",)),
        "upload": ("uplink", ("send",)),
        "download": ("downlink", ("send",)),
    }
    return {
        name: sum(
            i.end_s - i.start_s for i in seen if i.resource == f"{lane} {at}" and i.kind in kinds
        )
        for name, (lane, kinds) in columns.items()
    }


def _scores(
    records: Sequence[RoundRecord], own: Sequence[RoundRecord], at: int
) -> dict[str, object]:
    """Return losses and accuracies by round; the last accuracy on the test part by itself."""
    tested = [record.scores["accuracy"] for record in records if "accuracy" in record.scores]
    shown = {
        key: [round(r.scores[key], 4) for r in records if key in r.scores]
        for key in ("val_loss", "val_acc")
    }
    return {
        "test_accuracy": tested[-1] if tested else None,
        "train_loss": [_mean(record.losses[at]) for record in own],
        "train_acc": [round(r.right[at] / max(1, r.weights[at]), 4) for r in own],
        **shown,
        "accuracy by round": [round(value, 4) for value in tested],
    }


def _lanes(seen: Sequence[Interval], at: int) -> dict[str, float]:
    """Return seconds and shares that lanes were idle, and what the links carried a second."""
    names = [f"{lane} {at}" for lane in LANES]
    timeline = Timeline.of(_of(seen, at), names)
    shares = {lane: timeline.idle_share(f"{lane} {at}") for lane in LANES}
    found = {
        "server_idle": shares["server"] * timeline.span_s,
        "client_idle": shares["device"] * timeline.span_s,
        **{f"{lane} idle": share for lane, share in shares.items()},
    }
    for lane in ("uplink", "downlink"):
        own = [i for i in timeline.intervals if i.resource == f"{lane} {at}"]
        busy, bits = timeline.busy_s(f"{lane} {at}"), 8 * sum(i.bytes for i in own)
        found[f"{lane} Mbit/s"] = bits / busy / 1e6 if busy else 0.0
    return found


def _of(seen: Sequence[Interval], at: int) -> list[Interval]:
    return [i for i in seen if i.resource in {f"{lane} {at}" for lane in LANES}]


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None

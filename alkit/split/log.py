"""Intervals of one side's lanes, as they happen, and as a tensor that can travel."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from alkit.schedule.timeline import Interval
from alkit.split.schedule import DOWNLINK, LANES, UPLINK
from alkit.split.wire import Message

KINDS = ("load", "forward", "send", "backward", "update")
COLUMNS = 7  # lane, kind, step, micro, start, end, bytes


class LaneLog:
    """What one side saw of one device's lanes; times on its own clock."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, ...]] = []
        self.link_free_s = 0.0

    @contextmanager
    def task(self, lane: int, kind: str, step: int, micro: int = 0) -> Iterator[None]:
        """Note what runs in this block."""
        start_s = time.perf_counter()
        yield
        self._note(lane, kind, step, micro, start_s, time.perf_counter(), 0)

    def forward_backward(
        self, lane: int, step: int, micro: int, start_s: float, forward_s: float
    ) -> None:
        """Note a forward and the backward that followed it, up to now."""
        middle_s = start_s + forward_s
        self._note(lane, "forward", step, micro, start_s, middle_s, 0)
        self._note(lane, "backward", step, micro, middle_s, time.perf_counter(), 0)

    def arrival(self, lane: int, message: Message, offset_s: float = 0.0) -> None:
        """Note a transfer.

        It began when the sender handed over its first byte, or when the one before had come: a link
        carries one after the other.

        Args:
            lane: the uplink or the downlink.
            offset_s: this side's clock minus the sender's.
        """
        if lane not in (UPLINK, DOWNLINK):
            raise ValueError(f"{LANES[lane]} is no link")
        end_s = message.arrived_s
        start_s = min(end_s, max(self.link_free_s, message.sent_s + offset_s))
        self.link_free_s = end_s
        self._note(lane, "send", message.step, message.micro, start_s, end_s, message.size)

    def take(self) -> Tensor:
        """Return what has been noted since the last call: (intervals, 7), float64."""
        rows, self.rows = self.rows, []
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, COLUMNS)

    def _note(
        self, lane: int, kind: str, step: int, micro: int, start: float, end: float, size: int
    ) -> None:
        self.rows.append((lane, KINDS.index(kind), step, micro, start, end, size))


def intervals(rows: Tensor, device: int, offset_s: float = 0.0) -> list[Interval]:
    """Read what `take` gave.

    Args:
        offset_s: the reader's clock minus the writer's.
    """
    found = []
    for lane, kind, step, micro, start, end, size in rows.tolist():
        stage = 0 if LANES[int(lane)] in ("device", "uplink") else 1
        places = KINDS[int(kind)], stage, int(step), int(micro)
        name = f"{LANES[int(lane)]} {device}"
        found.append(Interval(name, *places, start + offset_s, end + offset_s, int(size)))
    return found

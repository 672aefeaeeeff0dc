"""When tasks ran: by the host's clock, or on an accelerator by events of its own.

A task on an accelerator returns when its operators are launched. Two events say when they ran. They
are read when the device has finished, and placed on the host's time by one event at the start.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from alkit.schedule.task import Task
from alkit.schedule.timeline import Interval

Moment = tuple[float, torch.Event | None]  # by the host's clock, and on an accelerator an event


class Watch:
    """Notes who ran which task, when it began and ended; a stage's `device` says whose events."""

    def __init__(self, stages: Iterable[Any]) -> None:
        places = [getattr(stage, "device", None) for stage in stages]
        real = [at if isinstance(at, torch.device) else None for at in places]
        self.devices = [None if at is None or at.type == "cpu" else at for at in real]
        self.clock = "device" if any(self.devices) else "host"
        self.origins: dict[torch.device, tuple[float, torch.Event]] = {}
        for device in {each for each in self.devices if each is not None}:
            torch.accelerator.synchronize(device)
            self.origins[device] = time.perf_counter(), _event(device)
        self.noted: list[tuple[str, Task, Moment, Moment]] = []

    def now(self, stage: int) -> Moment:
        """Return this moment; where the stage is on an accelerator, when it gets there."""
        device = self.devices[stage]
        return time.perf_counter(), None if device is None else _event(device)

    def intervals(self) -> Iterator[Interval]:
        """Return what was noted, in seconds of the host, once the devices have finished."""
        for device in self.origins:
            torch.accelerator.synchronize(device)
        for resource, task, start, end in self.noted:
            times = self._seconds(start, task.stage), self._seconds(end, task.stage)
            yield Interval(resource, *task, *times)

    def _seconds(self, moment: Moment, stage: int) -> float:
        (host_s, event), device = moment, self.devices[stage]
        if device is None or event is None:
            return host_s
        zero_s, zero = self.origins[device]
        return zero_s + zero.elapsed_time(event) / 1e3


def _event(device: torch.device) -> torch.Event:
    event = torch.Event(device, enable_timing=True)
    event.record(torch.accelerator.current_stream(device))
    return event

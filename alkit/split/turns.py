"""Turns at a tail that all devices share: one step of one device at a time, in a drawn order.

    position 0    2 0 1      position 1    0 2 1      ...      drawn anew at every position

A device that has gone is passed over from then on.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from alkit.data.seeds import generator_for
from alkit.split.channel import ChannelLost

__all__ = ["Turns", "Turnstile"]

Turns = Callable[[int], AbstractContextManager[Any]]  # the tail is the device's own, for a step


class Turnstile:
    """Whose turn it is in one round.

    Args:
        steps: of each device that takes part.
        devices: of the run, by which the order is drawn.
        seed, number: of the run, and of the round.
    """

    def __init__(self, steps: Mapping[int, range], devices: int, seed: int, number: int) -> None:
        self.steps = dict(steps)
        self.turns: list[tuple[int, int]] = []
        for at in range(max((len(own) for own in steps.values()), default=0)):
            draw = generator_for(seed, "turns", number, at)
            order = torch.randperm(devices, generator=draw).tolist()
            self.turns += [(at, own) for own in order if at < len(steps.get(own, ()))]
        self.next = 0
        self.gone: set[int] = set()
        self.stopped = False
        self.condition = threading.Condition()

    def of(self, device: int) -> Turns:
        """Return the turns of a device, by step."""

        @contextmanager
        def turn(step: int) -> Iterator[None]:
            mine = step - self.steps[device].start, device
            with self.condition:
                self.condition.wait_for(lambda: self.stopped or self.turns[self.next] == mine)
                if self.stopped:
                    raise ChannelLost("the run is over")
            yield
            with self.condition:
                self.next += 1
                self._pass_over()

        return turn

    @property
    def now(self) -> int | None:
        """The device whose turn it is; None after the last one."""
        return self.turns[self.next][1] if self.next < len(self.turns) else None

    def leave(self, device: int) -> None:
        """A device has gone: nobody waits for it any more."""
        with self.condition:
            self.gone.add(device)
            self._pass_over()

    def stop(self) -> None:
        """The run is over: whoever waits is told so."""
        with self.condition:
            self.stopped = True
            self.condition.notify_all()

    def _pass_over(self) -> None:
        while self.next < len(self.turns) and self.turns[self.next][1] in self.gone:
            self.next += 1
        self.condition.notify_all()

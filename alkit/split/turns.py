"""Turns at a tail that all devices share: (position in the round, device), one after the other.

drawn      position 0    2 0 1      position 1    0 2 1      ...      drawn anew each time
handed on  0 1 2: a whole round's steps of one device after the other's
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch

from alkit.data.seeds import generator_for
from alkit.split.rounds import Attendance
from alkit.split.settings import Settings

Turn = tuple[int, int]


class Turns:
    """Whose turn it is in one round.

    Attributes:
        left: turns to come; the first one is open.
    """

    def __init__(self, order: list[Turn]) -> None:
        self.left, self.changed = order, asyncio.Condition()

    @asynccontextmanager
    async def turn(self, place: int, device: int) -> AsyncIterator[None]:
        """Wait until it is a device's turn; at an error it stays its own."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.left[:1] == [(place, device)])
        yield
        async with self.changed:
            del self.left[0]
            self.changed.notify_all()


def turns_of(settings: Settings, orders: Attendance, number: int) -> list[Turn]:
    """Return the turns of a round at the tail that those who take part share."""
    if settings.rules.tail == "handed on":
        return [(0, at) for at in orders]
    turns, steps = [], {at: order.steps for at, order in orders.items()}
    for at in range(max((len(own) for own in steps.values()), default=0)):
        draw = generator_for(settings.seed, "turns", number, at)
        order = torch.randperm(settings.devices, generator=draw).tolist()
        turns += [(at, own) for own in order if at < len(steps.get(own, ()))]
    return turns

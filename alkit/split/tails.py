"""The tails of a run: one a device, or one that all devices share."""

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from alkit.engine.optimizers import Factory
from alkit.split.halves import Tail, factory_of
from alkit.split.member import Member
from alkit.split.settings import Settings

__all__ = ["Tails"]


class Tails:
    """Makes tails from a network, which stays as it is.

    Attributes:
        shared: the one for all devices, or None.
        handed: state of its optimiser, as the last device whose turn came to its end left it.
    """

    def __init__(
        self, units: Sequence[nn.Module], settings: Settings, optimizer: Factory | None = None
    ) -> None:
        self.units, self.settings = list(units), settings
        self.optimizer = factory_of(settings, optimizer)
        self.shared = self._new(0, settings.cuts[0]) if settings.rules.shared else None
        self.handed: Any = None

    def of(self, member: Member, cut: int) -> Tail:
        """Return the tail that a device trains with, in whatever state it is."""
        if self.shared is not None:
            return self.shared
        if member.work is not None and member.work.assignment.cut == cut:
            return member.work.tail
        return self._new(member.index, cut)

    def _new(self, device: int, cut: int) -> Tail:
        settings = self.settings
        units = copy.deepcopy(self.units)[cut:]
        return Tail(units, self.optimizer, first=cut, seed=settings.seed, device=device)

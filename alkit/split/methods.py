"""The published systems as rows of one table: they are settings of one engine.

method       cut          micro    tail                       averaged
central      0            1        one a device               everything
fed          all units    -        none                       everything (FedAvg)
split        any          1        one, devices take turns    nothing: both are handed on
splitfed     any          1        one a device               everything (SplitFed v1)
splitfed2    any          1        one for all, in an order   heads (SplitFed v2)
                                   drawn for every step
pipelearn    any          N        one a device               everything
"""

from typing import Literal, NamedTuple


class Method(NamedTuple):
    """What one system allows, and who trains which tail when.

    Attributes:
        cut: units on the device: "none" of them, "all", or "any" number.
        pipelined: an iteration may have several micro-batches.
        tail: "own", one a device; "handed on", one for all, of a whole round's steps for one
            device after the other; "drawn", one for all, step by step in a drawn order.
    """

    cut: Literal["none", "any", "all"] = "any"
    pipelined: bool = False
    tail: Literal["own", "handed on", "drawn"] = "own"

    @property
    def shared(self) -> bool:
        """Whether all devices share one tail."""
        return self.tail != "own"

    def cuts(self, units: int) -> range:
        """Return the numbers of units that a device may have, of so many."""
        return range(units * (self.cut == "all"), 1 + units * (self.cut != "none"))


TABLE = {
    "central": Method(cut="none"),
    "fed": Method(cut="all"),
    "split": Method(tail="handed on"),
    "splitfed": Method(),
    "splitfed2": Method(tail="drawn"),
    "pipelearn": Method(pipelined=True),
}
METHODS = tuple(TABLE)

"""The published systems as rows of one table: they are settings of one engine.

method       cut          micro    tail
central      0            1        one a device
fed          all units    -        none            (FedAvg)
splitfed     any          1        one a device    (SplitFed v1)
pipelearn    any          N        one a device
"""

from typing import Literal, NamedTuple


class Method(NamedTuple):
    """What one system allows.

    Attributes:
        cut: units on the device: "none" of them, "all", or "any" number.
        pipelined: an iteration may have several micro-batches.
    """

    cut: Literal["none", "any", "all"] = "any"
    pipelined: bool = False

    def cuts(self, units: int) -> range:
        """Return the numbers of units that a device may have, of so many."""
        return range(units * (self.cut == "all"), 1 + units * (self.cut != "none"))


TABLE = {
    "central": Method(cut="none"),
    "fed": Method(cut="all"),
    "splitfed": Method(),
    "pipelearn": Method(pipelined=True),
}
METHODS = tuple(TABLE)

"""Settings of a run of split learning.

method       cut          micro    tail
central      0            1        one a device
fed          all units    -        none            (FedAvg)
splitfed     any          1        one a device    (SplitFed v1)
pipelearn    any          N        one a device
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from alkit.base.arguments import check_real, check_whole


class Method(NamedTuple):
    """The limits of one published system."""

    cut: Literal["none", "any", "all"] = "any"  # number of units on the device
    pipelined: bool = False  # an iteration may have several micro-batches

    def cuts(self, units: int) -> range:
        """Return the numbers of units that a device may have, of `units` in all."""
        return range(units * (self.cut == "all"), 1 + units * (self.cut != "none"))


TABLE = {
    "central": Method(cut="none"),
    "fed": Method(cut="all"),
    "splitfed": Method(),
    "pipelearn": Method(pipelined=True),
}
METHODS = tuple(TABLE)
ALL = -1  # a cut: all units on the device


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of all parties. Epochs and batches are as a device counts its own samples."""

    method: str = "pipelearn"  # of `METHODS`
    devices: int = 2  # they share the samples; `alkit.fit` calls them workers
    cuts: tuple[int, ...] = ()  # [units on a device]; -1: all; default one, if there is a choice
    micro: int = 1  # micro-batches of an iteration
    epochs: int = 1
    batch: int = 100
    aggregate_every: int = -1  # iterations; -1 once an epoch of the device, 0 once at the end
    lr: float = 0.01  # of both sides
    seed: int = 1994  # of shares, order, augmentation and dropout
    drop_last: bool = False  # each device leaves a last, smaller batch of an epoch out
    threads: int = 1  # operator threads of each device, and of the server for each
    data_size: int = 0  # samples of each device; 0: all, shared out
    # on ranks, iterations that time the units of each machine before the start; cuts and
    # micro-batches are then chosen, by the speeds of links; 0: they are as given
    profile: int = 0
    uplink_mbit: float = 0.0
    downlink_mbit: float = 0.0
    events: str = ""  # on ranks, a table (CSV) of the tasks of all lanes, written round by round
    units: int = 0  # of the network; 0: not known yet, and nothing is said of cuts
    least: int = 1  # samples that a micro-batch must have; 2 where BatchNorm stands

    def __post_init__(self) -> None:
        check_whole(micro=self.micro)
        for name, least in {"aggregate_every": -1, "data_size": 0, "profile": 0}.items():
            if type(value := getattr(self, name)) is not int or value < least:
                raise ValueError(f"{name} is {value!r}: give a whole number, at least {least}")
        for name in ("uplink_mbit", "downlink_mbit"):
            check_real(name, getattr(self, name), zero=True)
        cuts = (self.cuts,) if isinstance(self.cuts, int) else tuple(self.cuts)
        if len(cuts) > 1 or min(cuts, default=0) < ALL:
            said = f"a network is split once, give one number, at least {ALL}"
            raise ValueError(f"cuts is {list(cuts)}: {said}")
        if not self.rules.pipelined and self.micro > 1:
            raise ValueError(f"{self.method} has one micro-batch: several are for pipelearn")
        if self.profile and not (self.rules.pipelined and self.uplink_mbit and self.downlink_mbit):
            said = "give method='pipelearn', uplink_mbit and downlink_mbit"
            raise ValueError(f"profile is given, and chooses cuts by the speeds of links: {said}")
        if self.units:
            allowed = self.rules.cuts(self.units)
            [cut] = cuts or [allowed[min(1, len(allowed) - 1)]]
            cuts = (self.units if cut == ALL else cut,)
            if cuts[0] not in allowed:
                said = f"{allowed[0]} to {allowed[-1]}" if len(allowed) > 1 else f"{allowed[0]}"
                raise ValueError(f"cut {cut} of {self.units} units: give {said} for {self.method}")
        object.__setattr__(self, "cuts", cuts)

    @property
    def cut(self) -> int:
        """How many units are on a device."""
        return self.cuts[0]

    @property
    def rules(self) -> Method:
        """The limits of the method."""
        return TABLE[self.method]

    def plain(self) -> dict[str, Any]:
        """Return the settings that all parties must share, for JSON; paths are left out."""
        told = {key: value for key, value in asdict(self).items() if key != "events"}
        return {key: list(own) if isinstance(own, tuple) else own for key, own in told.items()}

"""The checkpoint of a run of split learning, and whether it is of this run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from alkit.engine import checkpoint
from alkit.engine.behaviour import difference
from alkit.split.settings import Settings


@dataclass(frozen=True)
class Kept:
    """What tells a run's checkpoint from another's beside its settings.

    Attributes:
        network: how it prints itself.
        about: texts by name that are compared, such as what the optimiser is.
        behaviour: of a network's state, see `alkit.engine.behaviour.Rows`.
        anyway: a checkpoint of another run is gone on from.
    """

    network: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    behaviour: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda state: {}
    anyway: bool = False

    def write(self, path: Path, now: Mapping[str, Any]) -> None:
        """Save what the server has now, with what tells it from others."""
        own = {"network": self.network, "about": dict(self.about)}
        own["behaviour"] = self.behaviour(now["state"])
        checkpoint.save(path, dict(now) | own)

    def read(
        self, path: Path, job: str, settings: Settings, state: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Return what a checkpoint holds.

        Args:
            state: of this run's network, whose names and shapes it must have.
        Raises:
            ValueError: it is of another run, or damaged.
        """
        saved = checkpoint.load(path)
        told = saved.get("about", {})
        there = {"drop_last": False} | saved["settings"] | {"job": saved["job"]} | told
        own = settings.plain() | {"job": job} | (dict(self.about) if told else {})
        by_epochs = len(own["factors"]) == 1 and own["aggregate_every"] == -1
        if there["epochs"] < own["epochs"] and by_epochs:
            own["epochs"] = there["epochs"]  # the run goes on
        found = {"settings": there, "model": saved["state"]}
        found |= {"network": saved["network"]} if "network" in saved else {}
        if self.anyway:
            saved |= _forced(path, saved, settings, told, self.about)
            own = there
        checkpoint.check(path, found, {"model": state}, own, self.network)
        if not self.anyway:
            here = self.behaviour(saved["state"])
            checkpoint.refuse(path, difference(saved.get("behaviour", {}), here))
        return {"handed": saved["shared"], "planned": ()} | saved


def _forced(
    path: Path,
    saved: Mapping[str, Any],
    settings: Settings,
    told: Mapping[str, str],
    about: Mapping[str, str],
) -> dict[str, Any]:
    """Return what of a checkpoint of another run holds in this one.

    Raises:
        ValueError: states that it keeps are of no use here.
    """
    cuts = saved["settings"]["cuts"]
    if len(cuts) != settings.devices:
        raise ValueError(
            f"{path} is of {len(cuts)} devices, each with a state of its own, and here are"
            f" {settings.devices}: give workers={len(cuts)}"
        )
    if told and told["optimizer"] != about["optimizer"]:
        raise ValueError(
            f"{path} keeps states of an optimizer: it is {told['optimizer']} there and"
            f" {about['optimizer']} here: give the same, another path, or delete it"
        )
    choices = [list(each) for each in zip(settings.cuts, settings.micros, strict=True)]
    other = {} if cuts == list(settings.cuts) else {"handed": None, "shared": None}
    return {"choices": choices} | other

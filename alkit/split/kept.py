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
        first_loss: of a network's state, see `alkit.engine.behaviour.Rows`.
    """

    network: str = ""
    about: Mapping[str, str] = field(default_factory=dict)
    first_loss: Callable[[Mapping[str, Any]], float | None] = lambda state: None

    def write(self, path: Path, now: Mapping[str, Any]) -> None:
        """Save what the server has now, with what tells it from others."""
        own: dict[str, Any] = {"network": self.network, "about": dict(self.about)}
        own["first_loss"] = self.first_loss(now["state"])
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
        checkpoint.check(path, found, {"model": state}, own, self.network)
        here = self.first_loss(saved["state"])
        checkpoint.refuse(path, difference(saved.get("first_loss"), here))
        return {"handed": saved["shared"], "planned": ()} | saved

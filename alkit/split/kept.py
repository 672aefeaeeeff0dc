"""The checkpoint of a run of split learning, and whether it is of this run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        behaviour: of a network's state, see `alkit.engine.behaviour.Rows`.
        anyway: a checkpoint of another run is gone on from.
    """

    network: str = ""
    behaviour: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda state: {}
    anyway: bool = False

    def write(self, path: Path, now: Mapping[str, Any]) -> None:
        """Save what the server has now, with what tells it from others."""
        about = {"network": self.network, "behaviour": self.behaviour(now["state"])}
        checkpoint.save(path, dict(now) | about)

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
        there = saved["settings"] | {"job": saved["job"]}
        own = settings.plain() | {"job": job}
        if there["epochs"] < own["epochs"] and len(own["factors"]) == 1:
            own["epochs"] = there["epochs"]  # the run goes on
        found = {"settings": there, "model": saved["state"]}
        found |= {"network": saved["network"]} if "network" in saved else {}
        own = there if self.anyway else own
        checkpoint.check(path, found, {"model": state}, own, self.network)
        if not self.anyway:
            here = self.behaviour(saved["state"])
            checkpoint.refuse(path, difference(saved.get("behaviour", {}), here))
        return {"handed": saved["shared"], "planned": ()} | saved

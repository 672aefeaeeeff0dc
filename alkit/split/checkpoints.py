"""The server's checkpoint: all that the next round begins with, in a file that is always whole.

Head optimisers are not in it: each device keeps its own, see `alkit.split.device`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alkit.engine import checkpoint
from alkit.engine.behaviour import difference
from alkit.split.round import RoundRecord

if TYPE_CHECKING:
    from alkit.split.server import Server

__all__ = ["Kept", "restore", "save"]


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


def save(server: "Server", path: Path) -> None:
    """Write the state at a round's beginning."""
    optimizers = [
        [[list(key), state] for key, state in member.saved.items() if key[0] == server.round]
        for member in server.members
    ]
    shared = server.tails.shared
    state = {
        "job": server.name,
        "settings": server.settings.plain(),
        "network": server.kept.network,
        "behaviour": server.kept.behaviour(server.state),
        "round": server.round,
        "state": server.state,
        "optimizers": optimizers,
        "shared": None if shared is None else shared.optimizer_state(),
        "choices": [list(member.choice) for member in server.members],
        "planned": [member.index for member in server.members if member.planned],
        "records": [record.plain() for record in server.records],
    }
    checkpoint.save(path, state)


def restore(server: "Server", path: Path) -> None:
    """Put a new server where a checkpoint says.

    Raises:
        ValueError: it is of another run, or damaged.
    """
    saved, kept = checkpoint.load(path), server.kept
    there = saved["settings"] | {"job": saved["job"]}
    own = server.settings.plain() | {"job": server.name}
    if there["epochs"] < own["epochs"] and len(own["factors"]) == 1:
        own["epochs"] = there["epochs"]  # the run goes on
    found = {"settings": there, "model": saved["state"]}
    found |= {"network": saved["network"]} if "network" in saved else {}
    own = there if kept.anyway else own
    checkpoint.check(path, found, {"model": server.state}, own, kept.network)
    if not kept.anyway:
        here = kept.behaviour(saved["state"])
        checkpoint.refuse(path, difference(saved.get("behaviour", {}), here))
    server.state = dict(saved["state"])
    for member, rows in zip(server.members, saved["optimizers"], strict=True):
        member.choice = tuple(saved["choices"][member.index])
        member.planned = member.index in saved.get("planned", ())
        member.saved = {tuple(key): state for key, state in rows}
    if server.tails.shared is not None and saved["shared"] is not None:
        server.tails.shared.load_optimizer(saved["shared"])
        server.tails.handed = saved["shared"]
    server.records = [RoundRecord.read(record) for record in saved["records"]]

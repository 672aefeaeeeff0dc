"""The server's checkpoint: all that the next round begins with, in a file that is always whole.

Head optimisers are not in it: each device keeps its own, see `alkit.split.device`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from alkit.engine import checkpoint
from alkit.split.rounds import RoundRecord

if TYPE_CHECKING:
    from alkit.split.server import Server

__all__ = ["restore", "save"]


def save(server: "Server", path: Path) -> None:
    """Write the state at a round's beginning."""
    optimizers = [
        [[list(key), state] for key, state in replica.saved.items() if key[0] == server.round]
        for replica in server.replicas
    ]
    shared = server.shared.optimizer_state() if server.shared is not None else None
    state = {
        "job": server.name,
        "settings": server.settings.plain(),
        "round": server.round,
        "state": server.state,
        "optimizers": optimizers,
        "shared": shared,
        "choices": [list(choice) for choice in server.choices],
        "planned": sorted(server.planned),
        "records": [record.plain() for record in server.records],
    }
    checkpoint.save(path, state)


def restore(server: "Server", path: Path) -> None:
    """Put a new server where a checkpoint says.

    Raises:
        ValueError: it is of another run, or damaged.
    """
    saved = checkpoint.load(path)
    if saved["job"] != server.name or saved["settings"] != server.settings.plain():
        raise ValueError(f"{path} is of another run: give another path, or delete it")
    server.state, server.round = dict(saved["state"]), saved["round"]
    server.choices = [tuple(choice) for choice in saved["choices"]]
    server.planned = set(saved.get("planned", ()))
    for replica, rows in zip(server.replicas, saved["optimizers"], strict=True):
        replica.saved = {tuple(key): state for key, state in rows}
    if saved["shared"] is not None:
        server.tail_of(0, server.settings.cuts[0]).load_optimizer(saved["shared"])
        server.shared_optimizer = saved["shared"]
    server.records = [RoundRecord.read(record) for record in saved["records"]]

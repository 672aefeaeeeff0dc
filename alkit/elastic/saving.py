"""Checkpoints of a run: weights, moments and progress, in any layout the same."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from alkit.elastic.message import Transform
from alkit.elastic.network import Network
from alkit.elastic.optim import Optimizer
from alkit.elastic.progress import Progress
from alkit.engine import checkpoint

__all__ = ["load", "save"]


def save(
    path: Path,
    network: Network,
    optimizer: Optimizer,
    progress: Progress,
    settings: Mapping[str, Any],
) -> None:
    """Write all that training changes."""
    plain = {field.name: getattr(progress, field.name) for field in fields(progress)}
    plain["messages"] = [message.plain() for message in progress.messages]
    checkpoint.save(path, {
        "network": dict(network.state_dict()),
        "optimizer": {str(n): optimizer.state(n) for n in range(len(network.units))},
        "progress": plain,
        "settings": dict(settings),
    })  # fmt: skip


def load(
    path: Path, network: Network, optimizer: Optimizer, settings: Mapping[str, Any]
) -> Progress:
    """Put a checkpoint into network and optimisers, and return how far it is.

    Raises:
        ValueError: damaged, or of a run with other settings; names the first that differs.
    """
    saved = checkpoint.load(path)
    for name, value in settings.items():
        if saved["settings"].get(name) != value:
            raise ValueError(
                f"{path} was trained with {name} = {saved['settings'].get(name)!r}, not {value!r}:"
                " delete it to start anew"
            )
    plain = dict(saved["progress"])
    plain["messages"] = [Transform.read(each) for each in plain["messages"]]
    progress = Progress(**plain)
    network.load_state_dict(saved["network"])
    if progress.messages:
        network.freeze(progress.messages[-1].frozen)
        optimizer.drop_frozen()
    for number, state in saved["optimizer"].items():
        optimizer.restore(int(number), state)
    return progress

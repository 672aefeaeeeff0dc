"""Methods with ranks by the one face, on the ranks that torchrun has started.

torchrun ... tests/fitted.py METHOD ...      every rank prints a digest of each method's run

DIE_AT: the loss at which the process that computes it is killed; RUN: a checkpoint.
"""

import hashlib
import os
import re
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import alkit
from alkit.engine.record import Record

__all__ = ["METHODS", "blocks", "digest", "digests", "fit"]

METHODS: dict[str, dict[str, Any]] = {
    "al_pipeline": {"cuts": [2]},
    "pipedream": {"cuts": [2]},
    "1f1b": {"micro": 2, "cuts": [2]},
    "elastic": {"cache_from": 1},
    "dtp": {"iterations": 2},
}


def blocks() -> list[nn.Module]:
    """Make the same blocks wherever this is called."""
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]
    return [*hidden, nn.Linear(8, 3)]


def fit(method: str, **options: Any) -> Record:
    """Train blocks on tensors that are the same wherever this is called."""
    model = blocks()
    parts = [_labelled(torch.randn(count, 8)) for count in (32, 12, 12)]
    own = {"epochs": 3, "batch_size": 8, "lr": 0.02, "progress": False} | METHODS.get(method, {})
    return alkit.fit(model, *parts, method=method, **own | options)


def _labelled(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, x[:, :3].argmax(1)


def digest(record: Record) -> str:
    """Return a hash of all weights, losses, and what was right."""
    found = hashlib.sha256()
    assert record.losses is not None
    assert record.test_correct is not None
    for tensor in (*record.model.state_dict().values(), record.losses, record.test_correct):
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digests(said: str) -> dict[str, dict[str, str]]:
    """Return what every rank printed, by method and rank."""
    found: dict[str, dict[str, str]] = {}
    for method, rank, own in re.findall(r"^(\w+) (\d) (\w{64})$", said, re.MULTILINE):
        found.setdefault(method, {})[rank] = own
    return found


class _Fatal(nn.CrossEntropyLoss):
    """Cross-entropy that kills its process when it is computed for the `calls`th time; 0: never."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, scores: Tensor, y: Tensor) -> Tensor:
        self.calls -= 1
        if not self.calls:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(scores, y)


def _main() -> None:
    options: dict[str, Any] = {"checkpoint": os.environ.get("RUN")}
    if options["checkpoint"]:  # the same loss before and after: it is a part of the network
        options["loss"] = _Fatal(int(os.environ.get("DIE_AT", "0")))
    with alkit.torchrun_group():
        for method in sys.argv[1:]:
            record = fit(method, executor="ranks", **options)
            lines = record.details.lines if method == "elastic" else []
            said = [*lines, f"{method} {dist.get_rank()} {digest(record)}", ""]
            sys.stdout.write("\n".join(said))  # at once: the other rank writes there, too
            sys.stdout.flush()


if __name__ == "__main__":
    _main()

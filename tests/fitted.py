"""Methods with ranks by the one face, on the ranks that torchrun has started.

torchrun ... tests/fitted.py METHOD ...      every rank prints a digest of each method's run

RUN: a folder for each method's checkpoint; DIE_AT=RANK:COUNT: the step of an optimiser at which
that rank's process is killed, once a method.
"""

import hashlib
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import alkit
from alkit.engine.trainer import Record

__all__ = ["METHODS", "blocks", "digest", "digests", "fit"]

METHODS: dict[str, dict[str, Any]] = {
    "al_pipeline": {},
    "pipedream": {},
    "1f1b": {"micro": 2, "cuts": [1, 3]},
    "pipelearn": {"micro": 2, "workers": 1},
    "elastic": {"freeze": "schedule"},
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


def digest(record: Record, *, losses: bool = True) -> str:
    """Return a hash of all weights, what was right, and losses, which a finished run keeps none."""
    found = hashlib.sha256()
    kept = [*record.model.state_dict().values(), record.test_correct]
    for tensor in [*kept, record.losses] if losses else kept:
        assert tensor is not None
        found.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digests(said: str) -> dict[str, dict[str, str]]:
    """Return what every rank printed, by method and rank."""
    found: dict[str, dict[str, str]] = {}
    for method, rank, own in re.findall(r"^(\w+) (\d) (\w{64})$", said, re.MULTILINE):
        found.setdefault(method, {})[rank] = own
    return found


def _fatal(count: int, mark: Path) -> Callable[..., None]:
    """Return a hook that kills its process at its call number `count`, once for a mark."""
    calls = iter(range(1, 1 + count))

    def after_step(*_: Any) -> None:
        if next(calls, None) == count and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return after_step


def _main() -> None:
    run, (rank, count) = os.environ.get("RUN"), os.environ.get("DIE_AT", "0:0").split(":")
    with alkit.torchrun_group():
        for method in sys.argv[1:]:
            kept = None if run is None else Path(run) / method
            dies = kept is not None and dist.get_rank() == int(rank)
            hook = _fatal(int(count), Path(f"{kept}.died")) if dies else lambda *_: None
            held = register_optimizer_step_post_hook(hook)
            record = fit(method, checkpoint=kept)
            held.remove()
            said = [f"{method} {dist.get_rank()} {digest(record, losses=run is None)}", ""]
            sys.stdout.write("\n".join(said))  # at once: the other rank writes there, too
            sys.stdout.flush()


if __name__ == "__main__":
    _main()

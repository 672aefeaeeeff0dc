"""What stands between a backward and an update, what is looked at there, and the losses noted."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn

from alkit.engine.compiled import no_compilation


def backward(module: nn.Module, losses: Iterable[Tensor]) -> None:
    """Leave the gradients of a batch's losses in the parameters."""
    module.zero_grad(set_to_none=True)
    torch.autograd.backward([loss for loss in losses if loss.requires_grad])


def step(optimizer: torch.optim.Optimizer | None, clip: float | None = None) -> None:
    """Step once, if there is something to train; `clip` limits the norm of all gradients."""
    if optimizer is None:
        return
    if clip is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, clip)
    with no_compilation():
        optimizer.step()


def check_untied(kind: str, parts: Iterable[nn.Module]) -> None:
    """See that no two parts share a parameter: each would update it, at different moments."""
    owner: dict[int, tuple[int, str]] = {}
    for at, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            other, its_name = owner.setdefault(id(parameter), (at, name))
            if other != at:
                raise ValueError(
                    f"{kind} {other} and {at} share a parameter ({its_name} and {name}): untie it,"
                    " or have both uses in one of them"
                )


def check_reached(blocks: Iterable[nn.Module]) -> None:
    """See that every block that can learn has a gradient after the first backward."""
    for number, block in enumerate(blocks):
        own = [each for each in block.parameters() if each.requires_grad]
        if own and all(each.grad is None for each in own):
            raise ValueError(
                f"block {number} ({type(block).__name__}) can learn and gets no gradient: something"
                " above it detaches, or gives whole numbers; freeze it (requires_grad_(False)) if"
                " that is meant"
            )


LOOK_EVERY = 32  # batches, on an accelerator


class LossLog:
    """The losses of a stage, a row a batch.

    To look at a number that an accelerator computes is to wait for it: there an error comes up to
    `LOOK_EVERY` batches late, and still names its batch.

    Args:
        diverged: makes an exception of (batch, column, value) of a loss that is not finite.
    """

    def __init__(self, diverged: Callable[[int, int, float], Exception] | None = None) -> None:
        self.diverged = diverged
        self.seen: list[Tensor] = []  # rows on the host
        self.unseen: list[Tensor] = []  # where they were computed

    def __len__(self) -> int:
        return len(self.seen) + len(self.unseen)

    def note(self, row: Tensor) -> None:
        """Take in the losses of the next batch, (columns,)."""
        self.unseen.append(row.detach())
        if row.device.type == "cpu" or len(self.unseen) == LOOK_EVERY:
            self.look()

    def look(self) -> None:
        """Fetch what has not been looked at."""
        if not self.unseen:
            return
        fetched = self.unseen[0][None] if len(self.unseen) == 1 else torch.stack(self.unseen)
        first, self.unseen = len(self.seen), []
        rows = fetched.cpu()
        self.seen += rows.unbind()
        for at, row in enumerate(rows.tolist()):  # on the CPU ten times as fast as torch.isfinite
            for column, value in enumerate(row):
                if self.diverged is not None and not math.isfinite(value):
                    raise self.diverged(first + at, column, value)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what was noted, for other ranks."""
        return {"rows": self.rows()} if len(self) else {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Have these rows in the place of all own ones."""
        self.seen, self.unseen = [row for rows in state.values() for row in rows], []

    def rows(self) -> Tensor:
        """Return all of them, float or double (batches, columns)."""
        self.look()
        rows = torch.stack(self.seen)
        return rows.to(torch.promote_types(rows.dtype, torch.float32))

"""Target propagation as the loop runs it: its blocks are stages, and the engine runs them.

The costly loops of feedback wait only for features of their own block, so they run side by side:
on threads, a lane a block, or on ranks that own blocks. All end in the bits of one thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from alkit.dtp.learning import BlockFeedback
from alkit.dtp.networks import Net
from alkit.dtp.settings import LR, SGD, Settings
from alkit.dtp.stages import TargetStage
from alkit.engine import trainer
from alkit.engine.checkpoint import put_back
from alkit.engine.losses import LossLog
from alkit.engine.messages import Group
from alkit.engine.ranks import run_ranks
from alkit.engine.run import run_threads
from alkit.engine.trainer import Plan
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import free_workers


def assigned(feedback: BlockFeedback, ranks: int) -> dict[int, int]:
    """Return the rank of each loop: the longest first, always to the one with the least to do.

    A loop is as long as its iterations times its weights, which all ranks know.
    """
    loads = {
        n: feedback.iterations[n] * sum(each.numel() for each in feedback.parameters(n))
        for n in feedback.loops
    }
    found, busy = dict.fromkeys(loads, 0), [0] * ranks
    for n in sorted(loads, key=lambda n: -loads[n]):
        found[n] = busy.index(min(busy))
        busy[found[n]] += loads[n]
    return found


class Trainer(trainer.Trainer):
    """A network with all that its training changes.

    Attributes:
        step: the number of the next batch, which noise depends on.
        feedback_losses: of the epochs so far, by block, each (steps, K_n).
    """

    def __init__(self, net: Net, settings: Settings, plan: Plan, group: Group | None = None):
        self.model, self.plan, self.group = net, plan, group or Group(alone=True)
        self.feedback = BlockFeedback(net, settings, plan.method, plan.seed)
        rate = LR if plan.one_lr is None else plan.one_lr
        own = self.feedback, plan.optimizer or SGD, rate
        self.stages = [TargetStage(net, n, *own) for n in range(len(net))]
        self.optimizers = {k: each for stage in self.stages for k, each in stage.optimizers.items()}
        owners = assigned(self.feedback, self.group.ranks)
        ranks = [owners.get(n, 0) for n in range(len(net))]
        self.schedule = free_workers(target_propagation(len(net)), plan.workers or 1)
        if self.group.ranks > 1:
            self.schedule = target_propagation(len(net), owners=ranks)
        self.step, self.feedback_losses = 0, dict[int, list[Tensor]]()

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> trainer.Trained:
        """Train for an epoch on batches (x, y)."""
        losses, start_s = LossLog(), time.perf_counter()
        for stage in self.stages:
            stage.begin(losses, self.step)
        work, threads = (self.schedule, self.stages, batches), self.plan.threads
        run = partial(run_ranks, spare=True) if self.group.ranks > 1 else run_threads
        timeline = run(*work, threads=threads)
        rows = losses.rows().squeeze(1).double()
        self.step += len(rows)
        for n, stage in enumerate(self.stages):
            if len(stage.learned):
                self.feedback_losses.setdefault(n, []).append(stage.learned.rows())
        return trainer.Trained(rows.view(-1, 1, 1), timeline, time.perf_counter() - start_s)

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The loss of the network."""
        return self.model.loss

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return the optimisers of the forward weights."""
        return {f"forward.{n}": stage.optimizer for n, stage in enumerate(self.stages)}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, and all losses so far; every rank has it all."""
        states = {name: each.state_dict() for name, each in self.optimizers.items()}
        found = {"step": self.step, "feedback_losses": self.feedback_losses}
        return {"model": dict(self.model.state_dict()), "optimizers": states, "found": found}

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state that `state` returned, on any number of ranks."""
        self.model.load_state_dict(saved["model"])
        for name, each in self.optimizers.items():
            put_back(each, saved["optimizers"][name])
        vars(self).update(saved["found"])

"""Training with target propagation, the same in one process and on every rank; a step is

    1  activations    all blocks, each on a detached input
    2  feedback       K_n iterations for each block's G_n: the costly part, shared out over ranks
    3  targets        from the output down, with the new feedback
    4  update         local gradients of all blocks, one optimiser step

On several ranks everyone does 1, 3 and 4 on the same batch; in 2 each its own blocks. Then the
ranks hold the same bits as one process, whoever ran what.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from alkit.dtp.assign import assigned
from alkit.dtp.direct import DirectFeedback
from alkit.dtp.feedback import BlockFeedback, NotFinite
from alkit.dtp.networks import Net, Pass
from alkit.dtp.optimizers import optimizer
from alkit.dtp.settings import Settings
from alkit.dtp.stopwatch import Stopwatch
from alkit.dtp.targets import forward_gradients, output_target
from alkit.engine.group import Group

__all__ = ["Trained", "Trainer", "feedback_for"]

Gradients = Sequence[Tensor]
FeedbackLosses = dict[int, Tensor]


class Trained(NamedTuple):
    """What some steps came to, the same on all ranks.

    Attributes:
        losses: cross-entropy of the output, a number a step.
        feedback_losses: by block, (steps, K_n).
        seconds: of the steps.
    """

    losses: list[float]
    feedback_losses: FeedbackLosses
    seconds: float


def feedback_for(net: Net, settings: Settings, sample: Tensor) -> BlockFeedback | None:
    """Return what learns the feedback of a method; None with backprop.

    Args:
        sample: a batch of inputs, which the shapes of ddtp's maps are found by.
    """
    if settings.method == "ddtp":
        return DirectFeedback(net, settings, sample)
    return None if settings.method == "bp" else BlockFeedback(net, settings)


class Trainer:
    """A network with all that its training changes.

    Attributes:
        lr: of the next step's update.
        feedback: what learns the feedback; None with backprop.
        loads: seconds of each loop for a batch, as assigned by; owners: each loop's rank.
    """

    def __init__(
        self,
        net: Net,
        settings: Settings,
        sample: Tensor,
        *,
        owners: Sequence[int] | None = None,
        group: Group | None = None,
    ) -> None:
        self.net, self.settings, self.lr = net, settings, settings.lr
        self.group = group or Group()
        if settings.symmetric:
            net.make_symmetric()
        self.feedback = feedback_for(net, settings, sample)
        self.parameters = [p for block in net for p in block.forward_parameters()]
        own = settings
        self.optimizer = optimizer(
            own.optimizer, self.parameters, own.lr, own.momentum, own.weight_decay
        )
        self.loads, self.owners = assigned(self.feedback, sample, owners, self.group)
        self.watch = Stopwatch(self.group.rank)

    def train(self, batches: Iterable[tuple[Tensor, Tensor]], first_step: int = 0) -> Trained:
        """Train on batches (x, y one-hot).

        Args:
            first_step: the number of the first batch, which noise depends on.
        Raises:
            NotFinite: a loss or a weight is not.
            RanksDiffer: ranks have different weights or batches.
        """
        losses: list[float] = []
        learned: list[FeedbackLosses] = []
        start_s, done = time.perf_counter(), first_step
        for x, y_onehot in batches:
            loss, feedback_losses = self._step(x, y_onehot, done)
            losses.append(float(loss))
            learned.append(feedback_losses)
            done += 1
            if done % self.settings.check_every == 0:
                self.check_ranks(y_onehot, done)
        seconds = time.perf_counter() - start_s
        self.check_ranks(y_onehot, done)
        self._check_finite(done)
        return Trained(losses, self._from_owners(learned), seconds)

    def predict(self, x: Tensor) -> Tensor:
        """Return the logits without gradient."""
        return self.net.predict(x)

    def state(self) -> dict[str, Any]:
        """Return all that training changes; momenta come from their owners: every rank calls it."""
        momenta = {
            str(n): self.group.broadcast(each.state_dict(), owner)
            for owner, (n, each) in zip(self.owners, self._loops(), strict=True)
        }
        weights = dict(self.net.state_dict())
        return {"net": weights, "optimizer": self.optimizer.state_dict(), "feedback": momenta}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        for n, each in self._loops():
            each.load_state_dict(state["feedback"][str(n)])

    def check_ranks(self, seen: Tensor, step: int) -> None:
        """Compare all ranks' weights, and the labels they have seen.

        Raises:
            RanksDiffer: names what differs.
        """
        self.group.check_equal(
            {**self.net.state_dict(), "the batches": seen},
            when=f"after step {step} ",
            advice="give all ranks the same network, data, seed and number of threads",
        )

    # ---- a step

    def _step(self, x: Tensor, y_onehot: Tensor, step: int) -> tuple[Tensor, FeedbackLosses]:
        """Train on one batch; return its cross-entropy, and losses of this rank's loops."""
        if self.feedback is None:
            loss, gradients = self._backprop(x, y_onehot, step)
            learned: FeedbackLosses = {}
        else:
            loss, gradients, learned = self._targets(self.feedback, x, y_onehot, step)
        if not torch.isfinite(loss):
            raise NotFinite(f"the loss is {loss.item()} at step {step}: lower lr ({self.lr:g})")
        with self.watch.timed("update", len(self.net) - 1, step):
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return loss, learned

    def _backprop(self, x: Tensor, y_onehot: Tensor, step: int) -> tuple[Tensor, Gradients]:
        with self.watch.timed("forward", 0, step):
            loss = cross_entropy(self.net(x), y_onehot)
        with self.watch.timed("backward", 0, step):
            gradients = torch.autograd.grad(loss, self.parameters)
        return loss.detach(), gradients

    def _targets(
        self, feedback: BlockFeedback, x: Tensor, y_onehot: Tensor, step: int
    ) -> tuple[Tensor, Gradients, FeedbackLosses]:
        with self.watch.timed("forward", 0, step):
            run = self.net.locally(x)
        learned = self._learn(feedback, run, step)
        with self.watch.timed("targets", len(self.net) - 1, step):
            last = output_target(run.s[-1], y_onehot, self.settings.beta)
            deltas = feedback.targets(run, last)
        with self.watch.timed("backward", 0, step):
            gradients = sum(forward_gradients(self.net, run, deltas), [])
        return cross_entropy(run.s[-1].detach(), y_onehot), gradients, learned

    def _learn(self, feedback: BlockFeedback, run: Pass, step: int) -> FeedbackLosses:
        """Run the own loops; all ranks go through all loops in one order."""
        found = {}
        for n, owner in zip(feedback.loops, self.owners, strict=True):
            if owner == self.group.rank:
                with self.watch.timed("feedback", n, step):
                    found[n] = feedback.learn(n, run, step)
            if feedback.iterations(n):
                self.group.begin_broadcast(feedback.parameters(n), owner)
        if self.group.ranks > 1:
            with self.watch.timed("receive", 0, step):
                self.group.finish_broadcasts()
        return found

    # ---- between steps

    def _from_owners(self, learned: Sequence[FeedbackLosses]) -> FeedbackLosses:
        """Hand the loops' losses from their owners to all."""
        found = {}
        for owner, (n, _) in zip(self.owners, self._loops(), strict=True):
            own = owner == self.group.rank
            losses = torch.stack([each[n] for each in learned]) if own else None
            found[n] = self.group.broadcast(losses, owner)
        return found

    def _check_finite(self, steps: int) -> None:
        for name, value in self.net.state_dict().items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"{name} is not finite after step {steps}: lower lr")

    def _loops(self) -> list[tuple[int, torch.optim.Optimizer]]:
        """Return block and optimiser of each feedback loop."""
        return list(self.feedback.optimizers.items()) if self.feedback else []

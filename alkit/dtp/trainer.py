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
from torch.nn.utils import clip_grad_norm_

from alkit.data.given import Source, Splits
from alkit.dtp.angles import compare
from alkit.dtp.assign import assigned
from alkit.dtp.direct import DirectFeedback
from alkit.dtp.feedback import BlockFeedback, NotFinite
from alkit.dtp.networks import Net, Pass
from alkit.dtp.optimizers import optimizer, rate
from alkit.dtp.settings import Settings
from alkit.dtp.stopwatch import Stopwatch
from alkit.dtp.targets import forward_gradients, output_target
from alkit.engine import trainer
from alkit.engine.device import place
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.group import Group
from alkit.engine.losses import Losses
from alkit.schedule.timeline import Timeline

__all__ = ["Trained", "Trainer", "feedback_for"]

Gradients = Sequence[Tensor]
FeedbackLosses = dict[int, Tensor]
EVALUATED = 256  # samples at once
COMPARED = 256  # samples at most, for gradients beside backprop's
WAITS = ("feedback", "receive")
FOUND = ("losses", "feedback_losses", "angles")


class Trained(NamedTuple):
    """What some steps came to, the same on all ranks.

    Attributes:
        losses: of the output, double (steps,).
        seconds: of the steps.
        spent: of this rank, seconds in loops (feedback_s), and waiting for others' (receive_s).
        timeline: of the first steps of all.
    """

    losses: Tensor
    seconds: float
    spent: dict[str, float]
    timeline: Timeline


def feedback_for(net: Net, settings: Settings, sample: Tensor) -> BlockFeedback | None:
    """Return what learns the feedback of a method; None with backprop.

    Args:
        sample: a batch of inputs, which the shapes of ddtp's maps are found by.
    """
    if settings.method == "ddtp":
        return DirectFeedback(net, settings, sample)
    return None if settings.method == "bp" else BlockFeedback(net, settings)


class Trainer(trainer.Trainer):
    """A network with all that its training changes.

    Args:
        sample: a batch of inputs.
        steps: of the whole run, which its rates depend on.

    Attributes:
        lr: of the last step's update.
        feedback: what learns the feedback; None with backprop.
        loads: seconds of each loop for a batch, as assigned by; owners: each loop's rank.
        losses: of the epochs so far, each (steps,); feedback_losses: by block, (steps, K_n).
        angles: rows of `alkit.dtp.compare`, by epoch.
    """

    def __init__(
        self,
        net: Net,
        settings: Settings,
        sample: Tensor,
        steps: int,
        *,
        owners: Sequence[int] | None = None,
        group: Group | None = None,
    ) -> None:
        self.model, self.settings, self.lr = net, settings, settings.lr
        self.steps, self.group = steps, group or Group()
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
        self.losses: list[Tensor] = []
        self.feedback_losses: dict[int, list[Tensor]] = {}
        self.angles: list[dict[str, Any]] = []

    @property
    def name(self) -> str:
        """The method."""
        return self.settings.method

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Trained:
        """Train for an epoch on batches (x, y).

        Raises:
            NotFinite: a loss or a weight is not.
            RanksDiffer: ranks have different weights or batches.
        """
        losses = Losses(self._diverged)
        learned: list[FeedbackLosses] = []
        if not self.watch.seconds:
            self._begin()
        before = {kind: self.watch.total(kind) for kind in WAITS}
        own, step, epoch = self.settings, self.step, len(self.losses)
        start_s = time.perf_counter()
        for x, y in batches:
            self.lr = rate(own.schedule, own.lr, step, epoch, self.steps)
            learned.append(self._step(x, y, step, losses))
            step += 1
            if step % own.check_every == 0:
                self.check_ranks(y, step)
        seconds = time.perf_counter() - start_s
        self.check_ranks(y, step)
        self._check_finite(step)
        spent = {f"{kind}_s": self.watch.total(kind) - before[kind] for kind in WAITS}
        self.losses.append(losses.rows().squeeze(1).double())
        for n, found in self._from_owners(learned).items():
            self.feedback_losses.setdefault(n, []).append(found)
        return Trained(self.losses[-1], seconds, spent, self.watch.timeline())

    @property
    def step(self) -> int:
        """The number of the next batch, which noise depends on."""
        return sum(map(len, self.losses))

    def loss(self, scores: Tensor, y: Tensor) -> Tensor:
        """Return the network's loss."""
        return self.model.loss(scores, y)

    def judge(self, part: Source, metrics: Metrics | None) -> Judged:
        """Return what the network is worth on a part; the ranks share the work."""
        options: dict[str, Any] = {"batch_size": EVALUATED, "group": self.group}
        return judge(self.model, part, loss=self.loss, metrics=metrics, **options)

    def row(self, trained: Trained) -> dict[str, Any]:
        """Return an epoch's row; its seconds hold those of waiting for batches."""
        row = {"epoch": len(self.losses) - 1, "step": self.step, "lr": self.lr} | trained.spent
        return row | {"train_s": trained.seconds, "step_s": trained.seconds / len(trained.losses)}

    def measure(self, data: Splits) -> dict[str, Any]:
        """Compare gradients with backprop's, if it is this epoch's turn."""
        own, epochs = self.settings, len(self.losses)
        if self.feedback and own.compare_every and epochs % own.compare_every == 0:
            if data.validation is None:
                raise ValueError(f"compare_every is {own.compare_every}: give a validation part")
            batch = next(iter(data.validation.batches(COMPARED, shuffle=False)))
            x, y = place(batch, self.model)
            found = compare(self.model, x, y, own.compare_beta, feedback=self.feedback)
            self.angles += found.assign(epoch=epochs).to_dict("records")
        return {}

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return none: rates change by step."""
        return {}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, and what it has found; momenta are their owners'."""
        momenta = {
            str(n): self.group.broadcast(each.state_dict(), owner)
            for owner, (n, each) in zip(self.owners, self._loops(), strict=True)
        }
        return {
            "model": dict(self.model.state_dict()),
            "optimizers": {"forward": self.optimizer.state_dict()} | momenta,
            "found": {name: getattr(self, name) for name in FOUND},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizers"]["forward"])
        for n, each in self._loops():
            each.load_state_dict(saved["optimizers"][str(n)])
        for name in FOUND:
            setattr(self, name, saved["found"][name])

    def check_ranks(self, seen: Tensor, step: int) -> None:
        """Compare all ranks' weights, and the labels they have seen.

        Raises:
            RanksDiffer: names what differs.
        """
        self.group.check_equal(
            {**self.model.state_dict(), "the batches": seen},
            when=f"after step {step} ",
            advice="give all ranks the same network, data, seed and number of threads",
        )

    def _begin(self) -> None:
        """Make sure that all ranks begin alike, and start their clocks together."""
        self.check_ranks(torch.tensor([self.step]), self.step)
        self.group.wait_for_all()
        self.watch.start()

    # ---- a step

    def _step(self, x: Tensor, y: Tensor, step: int, losses: Losses) -> FeedbackLosses:
        """Train on one batch; note its loss, return the losses of this rank's loops."""
        x, y = place((x, y), self.model)
        if self.feedback is None:
            loss, gradients = self._backprop(x, y, step)
            learned: FeedbackLosses = {}
        else:
            loss, gradients, learned = self._targets(self.feedback, x, y, step)
        losses.note(loss.view(1))
        with self.watch.timed("update", len(self.model) - 1, step):
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            if self.settings.clip is not None:
                clip_grad_norm_(self.parameters, self.settings.clip)
            for group in self.optimizer.param_groups:
                group["lr"] = self.lr
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return learned

    def _diverged(self, batch: int, column: int, value: float) -> NotFinite:
        return NotFinite(f"the loss is {value} at step {self.step + batch}: lower lr ({self.lr:g})")

    def _backprop(self, x: Tensor, y: Tensor, step: int) -> tuple[Tensor, Gradients]:
        with self.watch.timed("forward", 0, step):
            loss = self.model.loss(self.model(x), y)
        with self.watch.timed("backward", 0, step):
            gradients = torch.autograd.grad(loss, self.parameters)
        return loss.detach(), gradients

    def _targets(
        self, feedback: BlockFeedback, x: Tensor, y: Tensor, step: int
    ) -> tuple[Tensor, Gradients, FeedbackLosses]:
        with self.watch.timed("forward", 0, step):
            run = self.model.locally(x)
        learned = self._learn(feedback, run, step)
        with self.watch.timed("targets", len(self.model) - 1, step):
            last = output_target(run.s[-1], y, self.settings.beta, self.model.loss)
            deltas = feedback.targets(run, last)
        with self.watch.timed("backward", 0, step):
            gradients = sum(forward_gradients(self.model, run, deltas), [])
        return self.model.loss(run.s[-1].detach(), y), gradients, learned

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
            losses = torch.stack([each[n] for each in learned]).cpu() if own else None
            found[n] = self.group.broadcast(losses, owner)
        return found

    def _check_finite(self, steps: int) -> None:
        for name, value in self.model.state_dict().items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"{name} is not finite after step {steps}: lower lr")

    def _loops(self) -> list[tuple[int, torch.optim.Optimizer]]:
        """Return block and optimiser of each feedback loop."""
        return list(self.feedback.optimizers.items()) if self.feedback else []

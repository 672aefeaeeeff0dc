"""Target propagation as the loop runs it: its blocks are stages, and the engine runs them.

The costly loops of feedback wait for their own block's features alone, so they run side by side:
on threads, a lane a block, or on ranks that own blocks. All end in the bits of one thread.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from alkit.data.given import Source
from alkit.dtp.assign import assigned
from alkit.dtp.feedback import BlockFeedback, NotFinite
from alkit.dtp.networks import Net, Pass
from alkit.dtp.optimizers import rate
from alkit.dtp.settings import Settings
from alkit.dtp.stages import TargetStage
from alkit.engine import trainer
from alkit.engine.evaluate import Judged, Metrics, judge
from alkit.engine.group import Group
from alkit.engine.loss_log import LossLog
from alkit.engine.optimizers import Factory
from alkit.engine.ranks import merged, run_ranks
from alkit.engine.run import run_single, run_threads
from alkit.schedule.targets import target_propagation
from alkit.schedule.task import free_workers
from alkit.schedule.timeline import Timeline

EVALUATED = 256  # samples at once
FOUND = ("losses", "feedback_losses")


class Trained(NamedTuple):
    """What an epoch came to: losses, double (steps, 1, 1); wall seconds; the timeline of all."""

    losses: Tensor
    seconds: float
    timeline: Timeline


class Trainer(trainer.Trainer):
    """A network with all that its training changes.

    Args:
        steps: of the whole run, which its rates depend on.
        workers: threads; with several ranks there is one each.
        factory: of the forward weights' optimisers; default the settings'.

    Attributes:
        lr: of the last step's update.
        losses: of the epochs so far, each (steps,); feedback_losses: by block, (steps, K_n).
    """

    def __init__(
        self,
        net: Net,
        settings: Settings,
        steps: int,
        *,
        workers: int = 1,
        group: Group | None = None,
        factory: Factory | None = None,
    ) -> None:
        self.model, self.settings, self.lr, self.steps = net, settings, settings.lr, steps
        self.group, self.workers = group or Group(), workers
        if settings.symmetric:
            net.make_symmetric()
        self.feedback = BlockFeedback(net, settings)
        self.owners = assigned(self.feedback, settings.owners, self.group.ranks)
        self.stages = [
            TargetStage(net, n, self.feedback, settings, factory) for n in range(len(net))
        ]
        loop = dict(zip(self.feedback.loops, self.owners, strict=True))
        self.ranks = [loop.get(n, 0) for n in range(len(net))]
        split = self.ranks if self.group.ranks > 1 else range(len(net))
        self.schedule = target_propagation(len(net), owners=split)
        if self.group.ranks == 1:
            self.schedule = free_workers(self.schedule, workers)
        self.losses: list[Tensor] = []
        self.feedback_losses: dict[int, list[Tensor]] = {}
        self.spent: dict[tuple[int, str, int], float] = {}  # by rank, kind and block

    @property
    def name(self) -> str:
        """The method."""
        return self.settings.method

    @property
    def step(self) -> int:
        """The number of the next batch, which noise depends on."""
        return sum(map(len, self.losses))

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Trained:
        """Train for an epoch on batches (x, y).

        Raises:
            NotFinite: a loss or a weight is not.
        """
        empty: list[Any] = [[None] * len(self.model) for _ in range(3)]
        losses, kept = LossLog(self._diverged), Pass(*empty)
        start_s = time.perf_counter()
        for stage in self.stages:
            stage.begin(losses, self.step, self.factor, kept)
        work = (self.schedule, self.stages, batches)
        if self.group.ranks > 1:
            timeline = run_ranks(*work, threads=self.settings.threads, spare=True)
            self.group.share(self.ranks, self._trained, self._take_over)
            if self.ranks[-1] != self.group.rank:
                losses.take_over(self._shared_losses)
            timeline = merged(timeline)
        else:
            run = run_single if self.workers == 1 else run_threads
            timeline = run(*work, threads=self.settings.threads)
        rows = losses.rows().squeeze(1).double()
        steps = self.step + len(rows)
        self._check_finite(steps)
        for n, stage in enumerate(self.stages):
            if stage.learned:
                self.feedback_losses.setdefault(n, []).append(torch.stack(stage.learned).cpu())
        self.lr = self.settings.lr * self.factor(steps - 1)
        self.losses.append(rows)
        for each in timeline.intervals:
            key = int(each.resource.removeprefix("worker ")), each.kind, each.stage
            self.spent[key] = self.spent.get(key, 0.0) + each.end_s - each.start_s
        return Trained(rows.view(-1, 1, 1), time.perf_counter() - start_s, timeline)

    def factor(self, step: int) -> float:
        """Return a step's share of the rate, while its epoch runs."""
        own = self.settings
        return rate(own.schedule, own.lr, step, len(self.losses), self.steps) / (own.lr or 1.0)

    def seconds(self) -> pd.DataFrame:
        """Return the seconds of all steps, by rank, kind and block."""
        rows = [(*key, seconds) for key, seconds in self.spent.items()]
        return pd.DataFrame(rows, columns=["rank", "kind", "block", "seconds"])

    @property
    def loss(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The network's loss."""
        return self.model.loss

    def judge(self, part: Source, metrics: Metrics | None) -> Judged:
        """Return what the network is worth on a part."""
        return judge(self.model, part, loss=self.loss, metrics=metrics, batch_size=EVALUATED)

    def row(self, trained: Trained) -> dict[str, Any]:
        """Return an epoch's row: its last step, and the seconds of its loops, added up."""
        loops = (each for each in trained.timeline.intervals if each.kind == "learn")
        feedback_s = sum(each.end_s - each.start_s for each in loops)
        own = {} if self.settings.schedule == "none" else {"lr": self.lr}
        return {"step": self.step, "feedback_s": feedback_s} | own

    def named_optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """Return those of the forward weights."""
        return {f"forward.{n}": stage.optimizer for n, stage in enumerate(self.stages)}

    def state(self) -> dict[str, Any]:
        """Return all that training changes, and what it has found; every rank has it all."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizers": {name: own.state_dict() for name, own in self._optimizers().items()},
            "found": {name: getattr(self, name) for name in FOUND},
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `state` returned, on any number of ranks."""
        self.model.load_state_dict(saved["model"])
        for name, own in self._optimizers().items():
            own.load_state_dict(saved["optimizers"][name])
        for name in FOUND:
            setattr(self, name, saved["found"][name])

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        own = self.named_optimizers()
        own |= {str(n): each for n, each in self.feedback.optimizers.items()}
        return {name: each for name, each in own.items() if each is not None}

    def _parts(self, n: int) -> dict[str, Any]:
        """Return a block's tensors and optimisers, by name."""
        own = {str(at): p for at, p in enumerate(self.model.blocks[n].parameters())}
        names = (f"forward.{n}", str(n))
        steps = {name: each for name, each in self._optimizers().items() if name in names}
        return {"weights": own, "steps": steps}

    def _trained(self, n: int) -> dict[str, Any]:
        own, stage = self._parts(n), self.stages[n]
        rows = stage.losses.rows() if stage.is_last else None
        steps = {name: each.state_dict() for name, each in own["steps"].items()}
        return {"weights": own["weights"], "steps": steps, "learned": stage.learned, "rows": rows}

    @torch.no_grad()
    def _take_over(self, n: int, trained: dict[str, Any]) -> None:
        own = self._parts(n)
        for name, parameter in own["weights"].items():
            parameter.copy_(trained["weights"][name])
        for name, each in own["steps"].items():
            each.load_state_dict(trained["steps"][name])
        self.stages[n].learned = trained["learned"]
        if self.stages[n].is_last:
            self._shared_losses = trained["rows"]

    def _diverged(self, batch: int, column: int, value: float) -> NotFinite:
        return NotFinite(f"the loss is {value} at step {self.step + batch}: lower lr ({self.lr:g})")

    def _check_finite(self, steps: int) -> None:
        for name, value in self.model.state_dict().items():
            if not torch.isfinite(value).all():
                raise NotFinite(f"{name} is not finite after step {steps}: lower lr")

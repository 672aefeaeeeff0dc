"""What rank 0 decides before a segment: layers to freeze, layout, whether features are stored."""

import math
from collections.abc import Callable

from alkit.elastic import choice
from alkit.elastic.examples import Examples, order
from alkit.elastic.freeze import Moment
from alkit.elastic.message import Transform
from alkit.elastic.network import UNITS_A_LAYER, Network
from alkit.elastic.plan import Plan
from alkit.elastic.progress import Progress
from alkit.elastic.settings import Settings

__all__ = ["Decider", "foresee"]


def foresee(network: Network, data: Examples, settings: Settings) -> None:
    """Make every layout that may come, so that what does not fit is said before the first step.

    Raises a ValueError for a batch that won't divide or fill, and for weights that stages share.
    """
    steps = math.ceil(len(data) // settings.batch / settings.every) if settings.every else 1
    most = settings.most_frozen(network.layers, network.frozen, settings.epochs * steps - 1)
    planner, plan = settings.planner(network.sizes(), network.layers), None
    for frozen in range(network.frozen, most + 1):
        plan = planner.at(frozen, plan)
        network.check_cuts(plan.bounds)
        if plan.batch > len(data):
            samples = f"{len(data)} samples do not fill a batch of {plan.batch}"
            raise ValueError(f"{samples}, which it is with {frozen} frozen layers")


class Decider:
    """Makes the decisions of a run.

    Args:
        total: samples of the whole run.
        say: writes a line into the log.
    """

    def __init__(
        self,
        network: Network,
        data: Examples,
        settings: Settings,
        total: int,
        say: Callable[[str], None],
    ) -> None:
        self.network, self.data, self.settings = network, data, settings
        self.total, self.say = total, say
        self.planner = settings.planner(network.sizes(), network.layers)
        self.policy = settings.policy()

    def look(self, at: Progress) -> bool:
        """Close the window of gradient norms if a decision about freezing is due; all ranks do."""
        due = at.last is not None and (self.settings.every > 0 or at.position == 0)
        if due:
            at.evaluation += 1
            at.norms.append(self._norms(at))
            at.squares, at.since = [0.0] * self.network.layers, 0
        return due

    def decide(
        self, at: Progress, plan: Plan | None, due: bool, stored: bool, generation: int
    ) -> Transform:
        """Return the decision.

        Args:
            plan: what runs now; None at the beginning, also after a checkpoint.
            due: whether a layer may be frozen, see `look`.
            stored, generation: of features, now.
        """
        frozen = self.network.frozen if at.last is None else at.last.frozen
        if due:
            norms = tuple(tuple(row) for row in at.norms)
            progress = at.samples / self.total
            frozen = self.policy(
                Moment(self.network.layers, frozen, at.evaluation, norms, progress)
            )
        made = self.planner.at(frozen, plan)
        changed = frozen > 0 and (at.last is None or at.last.frozen != frozen)
        if frozen == 0 or not self.settings.cache or made.start == 0:
            stores = False
        elif changed or plan is None:
            stores = self._stores(at, made, stored)
        else:
            stores = stored
        return Transform(
            len(at.messages), at.epoch, at.step, at.samples, frozen,
            list(made.counts), made.start, made.replicas, made.micro, made.batch, made.lr_scale,
            stores, generation + (stores and (changed or not stored)),
            at.norms[-1] if due else [],
        )  # fmt: skip

    def _norms(self, at: Progress) -> list[float]:
        """Return each layer's root mean squared gradient since the last decision."""
        found = []
        for layer in range(self.network.layers):
            low = 1 + UNITS_A_LAYER * layer
            units = self.network.units[low : low + UNITS_A_LAYER]
            count = sum(parameter.numel() for parameter in units.parameters())
            found.append(math.sqrt(at.squares[layer] / max(1, at.since) / count))
        return found

    def _stores(self, at: Progress, plan: Plan, stored: bool) -> bool:
        """Decide whether features are stored, by the clock or by the number of layers."""
        if self.settings.cache_from:
            return plan.frozen >= self.settings.cache_from
        rows = order(len(self.data), self.settings.seed, at.epoch)[: plan.batch // plan.replicas]
        older = at.last.frozen if at.last is not None and stored else 0
        before, training = self.network.frozen, self.network.training
        self.network.frozen = plan.frozen  # of what will run, to see what it takes
        try:
            self.network.eval()
            times = choice.measure(self.network, self.data.inputs(rows), before=older)
        finally:
            self.network.frozen = before
            self.network.train(training)
        visits = self.settings.epochs - at.epoch
        made = choice.choose(times, visits)
        self.say(f"[epoch {at.epoch} step {at.step}] {made.line(times, visits)}")
        return made.stores

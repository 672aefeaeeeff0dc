"""What rank 0 decides before a segment: layers to freeze, layout, whether features are stored."""

import math
from collections.abc import Callable

from alkit.elastic import cache_cost, lines, sync
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples, order
from alkit.elastic.freeze import Observation
from alkit.elastic.layout import Layout, Planner
from alkit.elastic.memory import Forecast
from alkit.elastic.network import Network
from alkit.elastic.pipeline import Pipeline
from alkit.elastic.progress import Progress
from alkit.elastic.settings import Settings
from alkit.models.blocks import trainable


def foresee(network: Network, data: Examples, settings: Settings) -> Planner:
    """Make every layout that may come, so that what does not fit is said before the first step.

    Returns what makes them. Raises a ValueError for a batch that won't divide or fill, for weights
    that stages share, and for a rank that would hold more than the budget.
    """
    forecast = _forecast(network, data, settings)
    fits = None if forecast is None else forecast.fits
    planner = settings.planner(network.sizes(), network.layers, network.units_a_layer, fits)
    steps = math.ceil(len(data) / settings.batch / settings.every) if settings.every else 1
    most = settings.most_frozen(network.layers, network.frozen, settings.epochs * steps - 1)
    layout = None
    for frozen in range(network.frozen, most + 1):
        layout = planner.at(frozen, layout)
        network.check_cuts(layout.bounds)
        if len(data) < (layout.batch if settings.drop_last else layout.replicas):
            samples = f"{len(data)} samples do not fill a batch of {layout.batch}"
            raise ValueError(
                f"{samples} on {layout.replicas} replicas, which it is with {frozen} frozen layers"
            )
        if forecast is not None:
            forecast.check(layout)
    return planner


def _forecast(network: Network, data: Examples, settings: Settings) -> Forecast | None:
    if settings.memory_budget is None:
        return None
    about = {"schedule": settings.schedule, "precision": settings.precision}
    return Forecast(network, data, settings.recipe, budget=settings.memory_budget, **about)


class Decider:
    """Makes the decisions of a run.

    Args:
        pipeline: what runs now.
        planner: of this network, see `foresee`.
        total: samples of the whole run.
        say: writes a line into the log.
    """

    def __init__(
        self, pipeline: Pipeline, planner: Planner, total: int, say: Callable[[str], None]
    ) -> None:
        self.pipeline, self.settings, self.network = pipeline, pipeline.settings, pipeline.network
        self.total, self.say = total, say
        self.planner = planner
        self.policy = self.settings.policy()

    def look(self, now: Progress) -> bool:
        """Close the window of gradient norms if a decision about freezing is due; all ranks do."""
        due = now.last is not None and (self.settings.every > 0 or now.position == 0)
        if due:
            now.evaluation += 1
            now.norms.append(self._norms(now))
            now.squares, now.since = [0.0] * self.network.layers, 0
        return due

    def decide(self, now: Progress, *, due: bool) -> Decision:
        """Return the decision.

        Args:
            due: whether a layer may be frozen, see `look`.
        """
        features, running = self.pipeline.features, self.pipeline.running
        before = self.network.frozen if now.last is None else now.last.frozen
        frozen = self._frozen(now, before) if due else before
        layout = self.planner.at(frozen, running)
        changed = frozen > 0 and (now.last is None or before != frozen)
        stores = features.stored
        if frozen == 0 or not features.wanted or layout.start == 0:
            stores = False
        elif changed or running is None:
            stores = self._stores(now, layout)
        return Decision(
            layout=layout,
            number=len(now.messages),
            epoch=now.epoch,
            step=now.step,
            samples=now.samples,
            cached=stores,
            generation=features.generation + (stores and (changed or not features.stored)),
            norms=now.norms[-1] if due else [],
        )

    def _frozen(self, now: Progress, before: int) -> int:
        """Return how many layers the rule freezes."""
        norms = tuple(tuple(row) for row in now.norms)
        share, layers = now.samples / self.total, self.network.layers
        return self.policy(Observation(layers, before, now.evaluation, norms, share))

    def _norms(self, now: Progress) -> list[float]:
        """Return each layer's root mean squared gradient since the last decision.

        A layer of which nothing learns has -1.
        """
        found = []
        for layer in range(self.network.layers):
            low = 1 + self.network.units_a_layer * layer
            units = self.network.units[low : low + self.network.units_a_layer]
            count = sum(each.numel() for each in units.parameters())
            learns = layer < self.network.frozen or trainable(units)
            mean = now.squares[layer] / max(1, now.since) / count
            found.append(math.sqrt(mean) if learns else -1.0)
        return found

    def _stores(self, now: Progress, layout: Layout) -> bool:
        """Decide whether features are stored, by the clock or by the number of layers."""
        if self.settings.cache_from:
            return layout.frozen >= self.settings.cache_from
        data, network = self.pipeline.data, self.network
        rows = order(len(data), self.settings.seed, now.epoch)[: layout.batch // layout.replicas]
        older = now.last.frozen if now.last is not None and self.pipeline.features.stored else 0
        before, training = network.frozen, network.training
        network.frozen = layout.frozen  # of what will run, to see what it takes
        try:
            network.eval()
            with sync.lent(network, range(network.first())):
                times = cache_cost.measure(network, data.inputs(rows), before=older)
        finally:
            network.frozen = before
            network.train(training)
        visits = self.settings.epochs - now.epoch
        choice = cache_cost.cheapest(times, visits)
        self.say(f"[epoch {now.epoch} step {now.step}] {lines.weighed(choice, times, visits)}")
        return choice.stores

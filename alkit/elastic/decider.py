"""What rank 0 decides before a segment: layers to freeze, layout, whether features are stored."""

import math
from functools import partial

from alkit.elastic import memory
from alkit.elastic.decision import Decision
from alkit.elastic.examples import Examples
from alkit.elastic.freeze import Observation
from alkit.elastic.layout import Planner
from alkit.elastic.network import Network
from alkit.elastic.pipeline import Pipeline
from alkit.elastic.progress import Progress
from alkit.elastic.settings import Settings
from alkit.models.blocks import trainable


def foresee(network: Network, data: Examples, settings: Settings) -> Planner:
    """Make every layout that may come, so that what does not fit is said before the first step.

    Returns what makes them. Raises a ValueError for a batch that won't divide or fill, for weights
    that stages share, and for a rank that would hold more than the budget beside activations.
    """
    fits = partial(memory.fits, network, settings)
    planner = settings.planner(network.sizes(), network.layers, network.units_a_layer, fits)
    most = settings.most_frozen(network.layers, network.frozen, settings.epochs - 1)
    layout = None
    for frozen in range(network.frozen, most + 1):
        layout = planner.at(frozen, layout)
        network.check_cuts(layout.bounds)
        if len(data) < (layout.batch if settings.drop_last else layout.replicas):
            samples = f"{len(data)} samples do not fill a batch of {layout.batch}"
            raise ValueError(
                f"{samples} on {layout.replicas} replicas, which it is with {frozen} frozen layers"
            )
        for stage in range(layout.stages):
            memory.check(network, settings, layout, stage)
    return planner


class Decider:
    """Makes the decisions of a run.

    Args:
        pipeline: what runs now.
        planner: of this network, see `foresee`.
        total: samples of the whole run.
    """

    def __init__(self, pipeline: Pipeline, planner: Planner, total: int) -> None:
        self.pipeline, self.settings, self.network = pipeline, pipeline.settings, pipeline.network
        self.total, self.planner = total, planner
        self.policy = self.settings.policy()

    def look(self, now: Progress) -> None:
        """Note the gradient norms of the epoch before, if there was one; all ranks do."""
        if now.last is not None:
            now.evaluation += 1
            now.norms.append(self._norms(now))
            now.squares, now.since = [0.0] * self.network.layers, 0

    def decide(self, now: Progress) -> Decision:
        """Return the decision; before the first epoch no layer is frozen."""
        features, running = self.pipeline.features, self.pipeline.running
        before = self.network.frozen if now.last is None else now.last.frozen
        frozen = before if now.last is None else self._frozen(now, before)
        most = max((row["activations"] for row in now.held), default=0)
        self.planner.fits = partial(memory.fits, self.network, self.settings, activations=most)
        layout = self.planner.at(frozen, running)
        changed = frozen > 0 and (now.last is None or before != frozen)
        stores = features.wanted and layout.start > 0
        return Decision(
            layout=layout,
            number=len(now.messages),
            epoch=now.epoch,
            step=now.step,
            samples=now.samples,
            cached=stores,
            generation=features.generation + (stores and (changed or not features.stored)),
            norms=now.norms[-1] if now.norms else [],
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

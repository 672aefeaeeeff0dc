"""The methods as data: the order of tasks, their weights, and the graph that a backward uses.

DDG and PipeDream are the same mathematics: their tasks, orders and weights are equal, and DDG waits
more. The two `inplace` methods compute the gradient of no function: the published DDG code and a
pipeline without stashed weights do that. The flushed methods have the gradients of backprop.

Sources: DDG, Huo et al. 2018; FR, Huo et al. 2018; PipeDream, Narayanan et al. 2019; 2BW, Narayanan
et al. 2021; GPipe, Huang et al. 2019.
"""

from dataclasses import dataclass

from alkit.base.arguments import meant


@dataclass(frozen=True)
class Method:
    """The choices of one method.

    Attributes:
        order: "seq" (one batch at a time), "barrier", "gradient_first", "1f1b" or "flushed", see
            `schedules.py`.
        backward: through the "saved" graph of the forward, a "replay" with the newest weights, a
            forward run again with its own ("recompute"), or the old graph over weights that were
            overwritten "inplace".
        weights: of the forward: "newest"; "sync", the same version on all modules, K - 1 old;
            "previous", one old.
        accumulates: an update takes the gradients of several micro-batches.
    """

    name: str
    order: str
    backward: str = "saved"
    weights: str = "newest"
    accumulates: bool = False

    @property
    def runs_again(self) -> bool:
        """Whether a backward runs the forward again."""
        return self.backward in ("replay", "recompute")

    def version(self, batch: int, stages: int) -> int | None:
        """Return how many updates the forward weights of a batch have seen; None for all."""
        if self.weights == "sync":
            return max(0, batch + 1 - stages)
        return max(0, batch - 1) if self.weights == "previous" else None

    def staleness(self, stages: int) -> int:
        """Return the most updates that a forward misses."""
        if self.weights == "previous":
            return 1
        return 0 if self.order == "seq" else stages - 1


ORDERS = (  # of one gradient, that of backprop
    *("gpipe", "1f1b", "zero_bubble"),
    *("interleaved_1f1b", "looped_bfs", "zbv", "dualpipev"),  # several modules a worker
)
METHODS = {
    method.name: method
    for method in (
        Method("seq", "seq"),
        Method("ddg", "gradient_first"),
        Method("ddg_barrier", "barrier"),
        Method("ddg_inplace", "gradient_first", "inplace"),
        Method("fr", "gradient_first", "replay"),
        Method("fr_barrier", "barrier", "replay"),
        Method("fr_1f1b", "1f1b", "replay"),
        Method("pipedream", "1f1b"),
        Method("pipedream_recompute", "1f1b", "recompute"),
        Method("pipedream_sync", "1f1b", weights="sync"),
        Method("pipedream_inplace", "1f1b", "inplace"),
        Method("2bw", "1f1b", weights="previous", accumulates=True),
        *(Method(name, "flushed", accumulates=True) for name in ORDERS),
    )
}


def method_named(name: str) -> Method:
    """Return a method."""
    if name not in METHODS:
        raise ValueError(
            f"unknown method {name!r}{meant(name, METHODS)}: give {', '.join(METHODS)}"
        )
    return METHODS[name]

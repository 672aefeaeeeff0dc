"""The methods as data: in which order tasks run, with which weights, and what a backward uses.

K modules; batch m runs forward, backward and update once on every module, in order. What tells the
methods apart are four choices:

    method               order            forward with   backward through
    seq                  one at a time    newest         the graph of the forward
    ddg                  gradient first   newest         the graph of the forward
    ddg_barrier          barrier          newest         the graph of the forward
    ddg_inplace          gradient first   newest         the old graph over overwritten weights
    fr                   gradient first   newest         a forward replayed with the newest weights
    fr_barrier           barrier          newest         the same
    fr_1f1b              1f1b             newest         the same
    pipedream            1f1b             newest         the graph of the forward
    pipedream_recompute  1f1b             newest         a forward run again with its own weights
    pipedream_sync       1f1b             K - 1 old      the graph of the forward
    pipedream_inplace    1f1b             newest         the old graph over overwritten weights
    2bw                  1f1b             one old        the graph of the forward; micro-batches
    flushed ones         flushed          newest         the graph of the forward; micro-batches

The flushed ones are gpipe, 1f1b, zero_bubble, interleaved_1f1b, looped_bfs, zbv and dualpipev: the
gradients of backprop in another order each.

DDG and PipeDream are the same mathematics: their tasks, orders and weights are equal, and DDG waits
more. The two `inplace` methods compute no function's gradient; they are what the published DDG code
and a pipeline without stashed weights do, and are here to be looked at.

Sources: DDG, Huo et al. 2018; FR, Huo et al. 2018; PipeDream, Narayanan et al. 2019; 2BW, Narayanan
et al. 2021; GPipe, Huang et al. 2019.
"""

from dataclasses import dataclass

from alkit.data.arguments import meant


@dataclass(frozen=True)
class Method:
    """The choices of one method.

    Attributes:
        order: "seq", "barrier", "gradient_first", "1f1b" or "flushed", see `schedules.py`.
        backward: "saved" graph, "replay" with the newest weights, "recompute" with the forward's
            own, or "inplace".
        weights: of the forward: "newest"; "sync", the same version on all modules; "previous".
        accumulates: an update takes the gradients of several micro-batches.
    """

    name: str
    order: str
    backward: str = "saved"
    weights: str = "newest"
    accumulates: bool = False

    def version(self, batch: int, stages: int) -> int | None:
        """Return how many updates the weights of a batch's forward have seen; None for all."""
        if self.weights == "sync":
            return max(0, batch + 1 - stages)
        return max(0, batch - 1) if self.weights == "previous" else None


ORDERS = (  # of one gradient, backprop's
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
    """Return a method.

    Raises:
        ValueError: an unknown name.
    """
    if name not in METHODS:
        raise ValueError(
            f"unknown method {name!r}{meant(name, METHODS)}: give {', '.join(METHODS)}"
        )
    return METHODS[name]

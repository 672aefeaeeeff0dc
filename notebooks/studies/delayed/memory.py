"""What each module holds at its peak, by method: the books of weights, activations and inputs.

d = K - 1 - k is a module's delay; W its weights, A what one batch's graph saves, I its input:

    method                  versions   activations     inputs
    seq                     W          A               -
    ddg, pipedream          (d+1) W    (d+1) A         -
    pipedream_recompute     (d+1) W    A               (d+1) I
    pipedream_sync          K W        (d+1) A         -
    *_inplace               W          (d+1) A         -
    fr                      W          A               (d+1) I
    2bw                     2 W        (d+1) A / M     -
    flushed ones            W          m A / M         -
    the same, recompute     W          A / M           m I / M

m is the most of a batch's M micro-batches that the schedule lets a module have in flight: M of
gpipe, min(d+1, M) of 1f1b. Gradients and the optimiser's state come to all of them alike. A graph
that is run again saves its own input, which is counted there as well.
"""

from collections.abc import Sequence
from functools import cache

import pandas as pd

from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import most_in_flight, schedule_for
from alkit.engine.costs import BlockCost


def memory(
    method: str,
    costs: Sequence[BlockCost],
    cuts: Sequence[int],
    input_bytes: int,
    *,
    micro: int = 1,
    states: int = 1,
    recompute: bool = False,
) -> pd.DataFrame:
    """Return bytes, a row a module: weights, activations, inputs, gradients and states, total.

    Args:
        costs: of the blocks, at the whole batch.
        input_bytes: of the batch that the first block takes.
        states: tensors that the optimiser keeps a parameter: 1 for momentum, 2 for Adam.
    """
    bounds, rows = [0, *cuts, len(costs)], []
    for stage, (low, high) in enumerate(zip(bounds, bounds[1:], strict=False)):
        given = costs[low - 1].output_bytes if low else input_bytes
        own = method, costs[low:high], given, stage, len(cuts) + 1
        rows.append(module_bytes(*own, micro=micro, states=states, recompute=recompute))
    return pd.DataFrame(rows).rename_axis("module")


def module_bytes(
    method: str,
    costs: Sequence[BlockCost],
    input_bytes: int,
    stage: int,
    stages: int,
    *,
    micro: int = 1,
    states: int = 1,
    recompute: bool = False,
) -> dict[str, int]:
    """Return the bytes of module `stage` of `stages`, whose blocks have these costs.

    Args:
        recompute: of a flushed method, see `Options`.
    """
    chosen, flying = METHODS[method], stages - stage
    weights = sum(cost.parameter_bytes for cost in costs)
    saved = sum(cost.saved_bytes for cost in costs)
    again = chosen.backward in ("replay", "recompute")
    graphs = 1.0 if again or chosen.order == "seq" else flying / micro
    if chosen.order == "flushed":
        most = _most(method, stages, micro)[stage]
        again = recompute and most > 1
        graphs, input_bytes = (1 if again else most) / micro, input_bytes // micro
        flying = most
    row = {
        "weights": weights * _versions(method, stages - stage, stages),
        "activations": round(saved * graphs),
        "inputs": flying * input_bytes if again else 0,
        "gradients and states": (1 + states) * weights,
    }
    return row | {"total": sum(row.values())}


def _versions(method: str, flying: int, stages: int) -> int:
    chosen = METHODS[method]
    if chosen.weights == "sync":
        return stages
    if chosen.weights == "previous":
        return 2
    stashes = chosen.backward in ("saved", "recompute") and chosen.order not in ("seq", "flushed")
    return flying if stashes else 1


@cache
def _most(method: str, stages: int, micro: int) -> list[int]:
    return most_in_flight(schedule_for(method, stages, micro))

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

m is the most of a batch's M micro-batches that the schedule lets a module have in flight: M of
gpipe, min(d+1, M) of 1f1b. Gradients and the optimiser's state come to all of them alike. A graph
that is run again saves its own input, which is counted there as well.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pandas as pd
from torch import nn

from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import most_in_flight, schedule_for
from studies.al.profile import Cost
from studies.common.ledger import Ledger


def memory(
    method: str,
    costs: Sequence[Cost],
    cuts: Sequence[int],
    input_bytes: int,
    *,
    micro: int = 1,
    states: int = 1,
) -> pd.DataFrame:
    """Return bytes, a row a module: weights, activations, inputs, gradients and states, total.

    Args:
        costs: of the blocks, at the whole batch.
        input_bytes: of the batch that the first block takes.
        states: tensors that the optimiser keeps a parameter: 1 for momentum, 2 for Adam.
    """
    chosen, stages, rows = METHODS[method], len(cuts) + 1, []
    flushed = chosen.order == "flushed"
    most = most_in_flight(schedule_for(method, stages, micro)) if flushed else []
    for stage, (low, high) in enumerate(pairwise([0, *cuts, len(costs)])):
        given = costs[low - 1].output_bytes if low else input_bytes
        weights = sum(cost.parameter_bytes for cost in costs[low:high])
        graphs = 1.0 if chosen.runs_again or chosen.order == "seq" else (stages - stage) / micro
        if flushed:
            graphs = most[stage] / micro
        row = {
            "weights": weights * _versions(method, stages - stage, stages),
            "activations": round(sum(cost.saved_bytes for cost in costs[low:high]) * graphs),
            "inputs": (stages - stage) * given if chosen.runs_again else 0,
            "gradients and states": (1 + states) * weights,
        }
        rows.append(row | {"total": sum(row.values())})
    return pd.DataFrame(rows).rename_axis("module")


def _versions(method: str, flying: int, stages: int) -> int:
    chosen = METHODS[method]
    if chosen.weights == "sync":
        return stages
    if chosen.weights == "previous":
        return 2
    stashes = chosen.backward in ("saved", "recompute") and chosen.order not in ("seq", "flushed")
    return flying if stashes else 1


def counting(model: Iterable[nn.Module], ledgers: Iterable[Ledger]) -> None:
    """Let a ledger a module, or AL layer, count what its graphs keep, without weights."""
    for module, ledger in zip(model, ledgers, strict=True):
        vars(module)["forward"] = partial(_counted, module, ledger)


def _counted(module: nn.Module, ledger: Ledger, *given: Any) -> Any:
    with ledger.recording(module.parameters(), module.buffers()):
        return type(module).forward(module, *given)

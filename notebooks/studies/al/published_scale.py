"""The published scale study, explained by six constants fitted on eight of its rows.

A Transformer of an embedding and L blocks, on G devices of one machine, trained by backprop with a
device a group of blocks (bp) or by AL-FM; one Python process launches everything. A step in the
clock, on devices and a shared interpreter (`alkit.schedule.resources`):

    constant        what it is
    launch_ms       the interpreter, for a layer's forward
    backward_ms     the device, for a block's backward in AL; nothing for the embedding. Backprop
                    also needs the gradient of the block's input: one launch_ms more
    update_ms       the interpreter, for a block's update; a layer's share is its number of tensors
    contention,     what sharing the interpreter loses; threads grow with the layers
    crowding
    hop_ms          backprop: copies there and back, for each change of device
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pandas as pd
from scipy.optimize import minimize

from alkit.schedule.clock import simulate
from alkit.schedule.task import Task, al, al_fm, al_m, al_pipeline, block_by_block
from studies.al.one_process import Sharing, one_process
from studies.al.placement import contiguous, round_robin
from studies.common.published import published

__all__ = [
    "FITTED",
    "Machine",
    "ablation",
    "constants",
    "fit",
    "pipeline_ms",
    "predictions",
    "step_ms",
    "study",
]

# (devices, blocks): the smallest and the largest network on 1, 2, 4 and 6 devices
FITTED = ((1, 1), (1, 12), (2, 2), (2, 12), (4, 4), (4, 12), (6, 6), (6, 12))
STEPS = 469  # of an epoch of AG News, 256 texts each
TENSORS = 7 / 32  # parameters of the embedding's layer over those of a block's, counted
START = (2.0, 5.0, 5.0, 0.9, 0.05, 2.0)
KINDS = ("forward", "backward", "update")
SCHEDULES = {"bp": block_by_block, "al": al, "al_m": al_m, "al_fm": al_fm}
PLACEMENTS = {"round_robin": round_robin, "contiguous": contiguous}


@dataclass(frozen=True)
class Machine:
    """The constants."""

    launch_ms: float
    backward_ms: float
    update_ms: float
    contention: float
    crowding: float
    hop_ms: float

    def seconds(self, method: str, task: Task) -> float:
        """Return what a task takes that has its resource for itself; stage 0 is the embedding."""
        embedding = task.stage == 0
        if task.kind == "forward":
            return self.launch_ms / 1000
        if task.kind == "update":
            return self.update_ms / 1000 * (TENSORS if embedding else 1)
        inputs_ms = self.launch_ms if method == "bp" else 0.0
        return 0.0 if embedding else (self.backward_ms + inputs_ms) / 1000


def study() -> pd.DataFrame:
    """Return the published times: gpus, layers, method, placement, ms (a step)."""
    rows = published("al_scale").rename(columns={"seconds_an_epoch": "ms"})
    return rows.assign(ms=1000 * rows.ms / STEPS).drop(columns=["population_sd", "source"])


def step_ms(
    machine: Machine, method: str, placement: str, gpus: int, layers: int, first: int = 0
) -> float:
    """Return the predicted time of a step.

    Args:
        method: "bp", "al", "al_m" or "al_fm".
        placement: of the blocks: "round_robin" or "contiguous"; the embedding is on device 0.
        first: device of the first block.
    """
    schedule = SCHEDULES[method](layers + 1)
    blocks = PLACEMENTS[placement](layers, gpus - first)
    devices = (0, *(first + device for device in blocks))

    def seconds(task: Task) -> float:
        before, here = devices[max(0, task.stage - 1)], devices[task.stage]
        hops = method == "bp" and task.kind == "forward" and before != here
        return machine.seconds(method, task) + hops * machine.hop_ms / 1000

    sharing = Sharing(machine.contention, machine.crowding)
    process = one_process(schedule, devices, sharing=sharing)
    return 1000 * simulate(schedule, seconds, 1, machine=process).span_s


def fit(rows: pd.DataFrame) -> Machine:
    """Return the constants with the least mean square of log(predicted / published)."""
    cases = list(rows[["method", "placement", "gpus", "layers"]].itertuples(index=False))
    logs = np.log(rows["ms"].to_numpy())

    def error(values: Sequence[float]) -> float:
        if min(values) < 0:
            return 10.0  # more than any sensible set of constants
        machine = Machine(*values)
        found = np.log([step_ms(machine, *case) for case in cases])
        return float(np.sqrt(np.mean((found - logs) ** 2)))

    options = {"maxiter": 2000, "xatol": 3e-3, "fatol": 1e-5}
    found = minimize(error, START, method="Nelder-Mead", options=options)
    return Machine(*(float(value) for value in found.x))


def predictions(machine: Machine, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with predicted_ms, error (predicted / published - 1) and whether fitted."""
    cases = rows[["method", "placement", "gpus", "layers"]].itertuples(index=False)
    predicted = [step_ms(machine, *case) for case in cases]
    fitted = [pair in FITTED for pair in zip(rows["gpus"], rows["layers"], strict=True)]
    return rows.assign(predicted_ms=predicted, error=predicted / rows["ms"] - 1, fitted=fitted)


def ablation(machine: Machine) -> pd.DataFrame:
    """Return the published modes on four devices, three blocks, and what the machine predicts."""
    rows = published("al_ablation")
    rows = rows[(rows["data"] == "ag_news") & (rows["method"] != "bp")]
    cases = ((method, "contiguous", 4, 3) for method in rows["method"])
    made = {
        "method": rows["method"],
        "ms": 1000 * rows["seconds_an_epoch"] / STEPS,
        "predicted_ms": [step_ms(machine, *case, first=1) for case in cases],
    }
    return pd.DataFrame(made)


def pipeline_ms(machine: Machine, gpus: int, layers: int, processes: bool) -> float:
    """Return what a step of al_pipeline would take, round robin, a thread a layer.

    Args:
        processes: one a device, each with an interpreter of its own; else one for all.
    """
    stages, devices = layers + 1, (0, *round_robin(layers, gpus))
    if processes:  # a process runs its layers one after the other
        loads = [0.0] * gpus
        for stage, device in enumerate(devices):
            loads[device] += sum(machine.seconds("al", Task(kind, stage, 0)) for kind in KINDS)
        return 1000 * max(loads)
    schedule, sharing = al_pipeline(stages), Sharing(machine.contention, machine.crowding)
    process = one_process(schedule, devices, sharing=sharing)
    seconds = partial(machine.seconds, "al")
    return 1000 * simulate(schedule, seconds, 3 * stages, machine=process).steady_s


def constants(machine: Machine) -> pd.Series:
    """Return the constants by name."""
    return pd.Series({field.name: getattr(machine, field.name) for field in fields(machine)})

"""Seconds of a step from four constants: what a layout would do on devices that are not here.

    t = prefix + pipe + fixed
    prefix = L_f tau B, the frozen layers on the whole batch; nothing of it if features are stored
    pipe   = (M + K - 1) / M  s_max tau (1 + beta) B

tau: forward seconds of a layer and sample; beta: backward over forward; s_max: the largest stage in
layers; B: samples of a replica. `fixed` holds reading, reduction and whatever a step costs anyway.

`event_s` calculates the pipe with the virtual clock, stage by stage; with equal stages both agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from alkit.elastic.layout import Layout, Planner, loads
from alkit.schedule.clock import simulate
from alkit.schedule.flushed import gpipe


class Constants(NamedTuple):
    """The four constants, three of them in seconds.

    Attributes:
        tau: of the forward of one layer for one sample.
        beta: backward over forward.
        read: of reading a batch's features.
        fixed: of everything else in a step.
    """

    tau: float
    beta: float
    read: float
    fixed: float


class Observed(NamedTuple):
    """A layout and what a step of it took."""

    frozen: int
    stages: int
    largest: float  # stage, in layers
    micro: int
    batch: int  # of a replica
    cached: bool
    seconds: float


@dataclass(frozen=True)
class EpochPlan:
    """An epoch of a run that is only calculated.

    Attributes:
        layout: stages, replicas, micro-batches.
        step_s: of a step.
        samples_per_s: of all replicas.
        cached: whether features were stored by an earlier epoch.
    """

    layout: Layout
    step_s: float
    samples_per_s: float
    cached: bool


def step_s(constants: Constants, layout: Observed) -> float:
    """Return the seconds of a step; the layout's own `seconds` are not looked at."""
    prefix, pipe = _loads(layout)
    tau, beta, read, fixed = constants
    stored = layout.cached and layout.frozen
    return (read if stored else tau * prefix) + tau * (1 + beta) * pipe + fixed


def calibrate(rows: Sequence[Observed]) -> Constants:
    """Fit the constants to measured steps: the largest relative error becomes as small as can be.

    A linear program, for a step is linear in tau, tau (1 + beta), read and fixed, none of which is
    negative. Reading and the fixed part can be told apart only if some layouts have stored features
    and others have not.
    """
    from scipy.optimize import linprog  # lazily: it takes half a second

    shares = []
    for row in rows:
        prefix, pipe = _loads(row)
        stored = bool(row.cached and row.frozen)
        parts = [0.0 if stored else prefix, pipe, float(stored), 1.0]
        shares.append([part / row.seconds for part in parts])
    design = np.array(shares)
    scale = design.max(axis=0)
    design = design / scale
    error = np.full((len(rows), 1), -1.0)
    found = linprog(
        [0, 0, 1e-9, 0, 1],  # where several fit as well: the one without a time for reading
        A_ub=np.block([[design, error], [-design, error]]),
        b_ub=np.concatenate([np.ones(len(rows)), -np.ones(len(rows))]),
    )
    tau, both, read, fixed = found.x[:4] / scale
    return Constants(float(tau), float(both / tau - 1), float(read), float(fixed))


def event_s(constants: Constants, plan: Layout, sizes: Sequence[float], batch: int) -> float:
    """Return the seconds of the pipe of one batch by the virtual clock.

    Args:
        sizes: of all units, in layers.
        batch: samples of a replica.
    """
    each = loads(sizes[plan.start :], plan.counts)
    unit = constants.tau * batch / plan.micro
    durations = {}
    for stage, load in enumerate(each):
        durations["forward", stage] = load * unit
        durations["backward", stage] = load * unit * constants.beta
        durations["update", stage] = 0.0
    return simulate(gpipe(plan.stages, plan.micro), durations, 1).span_s


def epoch_plans(
    constants: Constants,
    planner: Planner,
    frozen: Sequence[int],
    layer_size: float,
    *,
    cached: bool,
) -> list[EpochPlan]:
    """Calculate a run, an epoch a number of frozen layers.

    An epoch with other layers than the one before computes and stores; one with the same reads.

    Args:
        layer_size: of one layer, in the unit of the planner's sizes.
    """
    found: list[EpochPlan] = []
    plan: Layout | None = None
    for at, count in enumerate(frozen):
        plan = planner.at(count, plan)
        before = frozen[at - 1] if at else 0
        stores = cached and plan.start > 0  # what stays in the pipeline is not stored
        stored = stores and before == count
        largest = max(loads(planner.sizes[plan.start :], plan.counts)) / layer_size
        batch = plan.batch // plan.replicas
        layout = Observed(count, plan.stages, largest, plan.micro, batch, stored, 0.0)
        if plan.start == 0:  # frozen layers stay in the pipeline
            layout = layout._replace(frozen=0)
        seconds = step_s(constants, layout)
        if stores and count > before > 0:  # what was stored is read, the new layers are run
            seconds -= constants.tau * before * batch
        found.append(EpochPlan(plan, seconds, plan.batch / seconds, stored))
    return found


def _loads(row: Observed) -> tuple[float, float]:
    """Return (layers x samples in front of the pipe, layers x samples on its critical path)."""
    path = (row.micro + row.stages - 1) / row.micro * row.largest * row.batch
    return float(row.frozen * row.batch), path

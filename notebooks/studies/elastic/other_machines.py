"""What a run would do on machines that are not here: layouts and speed, epoch by epoch.

The network is ViT-B/16 and the constants are those that fit the committed log of the published
code, 2 x 8 GPUs on CIFAR-10 (`notebooks/results/published/elastic_log.csv`); see `costmodel`.
"""

from functools import cache

import pandas as pd
import torch

from alkit.elastic.freeze import Observation, Policy
from alkit.elastic.layout import Layout, Planner, loads, table_micro
from alkit.elastic.network import vit_classifier
from alkit.elastic.settings import Settings
from alkit.models.encoder import ViTSizes
from studies.common.published import published
from studies.elastic.cost_model import Constants, Observed, calibrate, epoch_plans, event_s, step_s
from studies.elastic.greedy import filled, greedy

LAYER = 7.087872  # millions of parameters of a layer of ViT-B/16


@cache
def _sizes(classes: int) -> tuple[float, ...]:
    with torch.device("meta"):
        return tuple(vit_classifier(ViTSizes(classes=classes)).sizes())


def log_rows() -> pd.DataFrame:
    """Return the committed log with the greedy rule's largest stage and the seconds of a step."""
    log = published("elastic_log")
    largest = []
    for row in log.itertuples():
        active = _active(row.frozen)
        largest.append(max(loads(active, greedy(active, row.stages))) / LAYER)
    step = 320 * log.replicas / log.samples_per_s
    micro = [table_micro(stages) for stages in log.stages]
    return log.assign(largest=largest, micro=micro, seconds=step)


def _active(frozen: int) -> tuple[float, ...]:
    """Return the sizes of the units above `frozen` layers: two a layer, after the embedding."""
    return _sizes(10)[1 + 2 * frozen if frozen else 0 :]


def _observed(rows: pd.DataFrame) -> list[Observed]:
    return [
        Observed(r.frozen, r.stages, r.largest, r.micro, 320, bool(r.cached), r.seconds)
        for r in rows.itertuples()
    ]


def fitted() -> tuple[Constants, pd.DataFrame]:
    """Return the constants, and the log beside what they say.

    `model_s` by the formula, where every stage is as slow as the slowest; `simulated_s` by the
    simulator, where each stage has its own load.
    """
    rows = log_rows()
    observed = _observed(rows)
    constants = calibrate(observed)
    model = [step_s(constants, row) for row in observed]
    clock = [second - _slack(constants, row) for second, row in zip(model, observed, strict=True)]
    error = pd.Series(model) / rows.seconds - 1
    return constants, rows.assign(model_s=model, simulated_s=clock, error=error)


def _slack(constants: Constants, row: Observed) -> float:
    """Return the seconds by which the formula's pipe is longer than the virtual clock's."""
    active = _active(row.frozen)
    counts = tuple(greedy(active, row.stages))
    plan = Layout(frozen=0, counts=counts, start=0, replicas=1, micro=row.micro, batch=row.batch)
    sizes = [size / LAYER for size in active]
    formula = step_s(constants, row._replace(frozen=0)) - constants.fixed
    return formula - event_s(constants, plan, sizes, row.batch)


def what_if(
    policy: Policy,
    *,
    devices: int = 16,
    stages: int = 8,
    epochs: int = 10,
    batch: int = 400,
    classes: int = 1000,
    pipe: bool = True,
    dp: bool = True,
    cache: bool = True,
    growing: bool = True,
    constants: Constants | None = None,
) -> pd.DataFrame:
    """Return an epoch a row: frozen layers, stages, replicas, step_s, samples_per_s.

    Args:
        policy: which layers freeze; rules that look at gradients freeze nothing here.
        batch: samples of a replica at first.
        pipe, dp, cache: the switches beside freezing, see `alkit.elastic.layout`.
        growing: a replica keeps its batch, so that the global one grows, as published.
    """
    sizes, layers = _sizes(classes), ViTSizes().layers
    planner = Planner(
        settings=Settings(stages=stages, pipe=pipe, dp=dp, cache=cache, growing=growing),
        sizes=sizes,
        devices=devices,
        batch=batch * (devices // stages),
        partition=filled,
    )
    frozen = [0]
    for epoch in range(1, epochs):
        frozen.append(policy(Observation(layers, frozen[-1], epoch, progress=epoch / epochs)))
    run = epoch_plans(constants or fitted()[0], planner, frozen, LAYER, cached=cache)
    return pd.DataFrame(
        {
            "epoch": range(epochs),
            "frozen": frozen,
            "stages": [each.layout.stages for each in run],
            "replicas": [each.layout.replicas for each in run],
            "batch": [each.layout.batch for each in run],
            "cached": [each.cached for each in run],
            "step_s": [each.step_s for each in run],
            "samples_per_s": [each.samples_per_s for each in run],
            "bounds": [each.layout.bounds for each in run],
        }
    )

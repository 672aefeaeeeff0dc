"""Elastic training as one call, in this process or over ranks that it starts."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from alkit.data.arguments import changed
from alkit.elastic.decider import foresee
from alkit.elastic.examples import Examples
from alkit.elastic.loop import run
from alkit.elastic.network import Network
from alkit.elastic.record import Record
from alkit.elastic.settings import Settings
from alkit.engine.device import Names
from alkit.engine.evaluate import Metrics
from alkit.engine.folders import Home
from alkit.engine.group import of_first
from alkit.engine.launch import launch
from alkit.engine.rank_device import backend_for, on_own_device, place_whole

__all__ = ["train"]


def train(
    network: Network,
    data: Examples | tuple[Any, Tensor],
    *,
    device: Names | None = None,
    ranks: int = 1,
    validation: Examples | None = None,
    test: Examples | None = None,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    settings: Settings | None = None,
    metrics: Metrics | None = None,
    **changes: Any,
) -> Record:
    """Train a network in place: freeze, pipeline, replicate, cache.

    Args:
        data: the training part; batches go to the network's device, features stay in memory.
        device: where to train, see `alkit.fit`; None leaves the network where it is.
        ranks: processes to start, each one device; 1: train in this process.
        checkpoint: written after each epoch; training goes on from it if it is there.
        metrics: what else is measured, by name, see `alkit.fit`.
        settings, changes: see `Settings`: freeze="schedule", pipe=True, dp=True, cache=True, ...
    Raises:
        RankFailed: a rank failed; names it, and none is left running.
        ValueError, NotFinite: see `alkit.elastic.loop.run`.
    """
    data = data if isinstance(data, Examples) else Examples(*data)
    settings = changed(settings or Settings, changes)
    path = None if checkpoint is None else Path(checkpoint)
    parts: dict[str, Any] = {"validation": validation, "test": test, "checkpoint": path}
    parts |= {"metrics": metrics}
    if ranks == 1:
        place_whole(network, device, on_ranks=settings.executor == "ranks")
        return run(network, data, settings, progress=progress, **parts)
    settings = replace(settings, devices=ranks, executor="ranks")
    foresee(network, data, settings)  # what is wrong is said before a start
    with _features_home(settings) as home:
        if home is not None:
            settings = replace(settings, cache_folder=str(home.path))
        job = partial(run, progress=False, **parts)
        given = on_own_device, device, job, network, data, settings
        backend = backend_for(device, ranks)
        options: dict[str, Any] = {"threads": settings.threads, "backend": backend}
        record = launch(of_first, *given, ranks=ranks, **options)[0]
    assert isinstance(record, Record)
    network.load_state_dict(record.state)
    network.freeze(record.messages[-1].frozen)
    return record


def _features_home(settings: Settings) -> AbstractContextManager[Home | None]:
    """Give the ranks a folder that goes away with this call, even if they are killed."""
    try:
        return Home(settings.cache_folder) if settings.cache else nullcontext()
    except OSError:
        return nullcontext()  # rank 0 will meet the same, and say so

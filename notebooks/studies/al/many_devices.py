"""Plan past this machine: step times on many devices from the costs of one block measured here.

A network of equal blocks; each method on its own placement, in the clock:

    al_pipeline            a worker a device, equal groups of layers
    al_fm                  the forwards on one worker, backwards and updates shared by the others
    gpipe, 1f1b,           a stage a device; the best number of micro-batches that divides the
    zero_bubble            batch, each taking its part of the batch's time
    ddp                    a part of the batch a device, then all gradients once around the ring

What no plan can know: memory bandwidth that devices share, kernels that small micro-batches use
badly, launch times, other people's traffic. Small micro-batches are where torch's pipelines are
flattered; AL-FM's forwards are taken to move between devices for nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from alkit.schedule.clock import simulate
from alkit.schedule.costs import BlockCost
from alkit.schedule.flushed import gpipe, one_f_one_b, zero_bubble
from alkit.schedule.task import Task, al_fm, al_pipeline

__all__ = ["METHODS", "Network", "plan", "step_s"]

METHODS = ("al_pipeline", "al_fm", "gpipe", "1f1b", "zero_bubble", "ddp")
PIPELINES = {"gpipe": gpipe, "1f1b": one_f_one_b, "zero_bubble": zero_bubble}
PARTS = {"backward_input": 0.5, "backward_weight": 0.5}  # of a backward, unless measured


@dataclass(frozen=True)
class Network:
    """Equal blocks, and what one costs a batch.

    Attributes:
        al, bp: an AL layer, with its bridge and label side; a block of the BP twin.
        samples: of a batch.
    """

    blocks: int
    al: BlockCost
    bp: BlockCost
    samples: int


def plan(networks: Sequence[Network], devices: Sequence[int], bandwidth: float) -> pd.DataFrame:
    """Return samples a second for every method and number of devices, with a band.

    Args:
        networks: the same one with costs from several measurements; the band is their lowest and
            highest, the value their median.
        bandwidth: bytes a second between neighbours, beside the computation.
    Returns:
        Columns method, devices, samples_s, low, high; no row where a method can't use so many.
    """
    rows = []
    for method in METHODS:
        for count in (c for c in devices if c <= _most(method, networks[0])):
            steps = [step_s(method, network, count, bandwidth) for network in networks]
            rates = pd.Series(
                [network.samples / s for network, s in zip(networks, steps, strict=True)]
            )
            rows.append((method, count, rates.median(), rates.min(), rates.max()))
    return pd.DataFrame(rows, columns=["method", "devices", "samples_s", "low", "high"])


def step_s(method: str, network: Network, devices: int, bandwidth: float) -> float:
    """Return the seconds of a step after fill.

    Raises:
        ValueError: an unknown method, or more devices than blocks (samples for ddp).
    """
    if method not in METHODS:
        raise ValueError(f"unknown method {method!r}: give one of {', '.join(METHODS)}")
    limit = _most(method, network)
    if not 1 <= devices <= limit:
        what = "samples" if method == "ddp" else "blocks"
        raise ValueError(f"{devices} devices for {limit} {what}: give 1 to {limit}")
    if method == "ddp":
        return _data_parallel_s(network, devices, bandwidth)
    if method in PIPELINES:
        return min(_flushed_s(method, network, devices, m, bandwidth) for m in _micro(network))
    return _local_s(method, network, devices, bandwidth)


def _most(method: str, network: Network) -> int:
    """Return the most devices that a method can use."""
    return network.samples if method == "ddp" else network.blocks


def _local_s(method: str, network: Network, devices: int, bandwidth: float) -> float:
    """AL: what a layer hands on travels beside the work."""
    cost, layers = network.al, network.blocks
    seconds = _of_kind(cost)
    link_s = cost.output_bytes / bandwidth
    if method == "al_pipeline":
        cuts = [layers * worker // devices for worker in range(1, devices)]
        schedule, batches = al_pipeline(layers, cuts), 2 * devices + 8
        return simulate(schedule, seconds, batches, link_s=lambda task: link_s).steady_s
    workers = min(devices, layers) + 1
    return simulate(al_fm(layers, workers), seconds, 6, cores=devices).steady_s


def _flushed_s(method: str, network: Network, devices: int, micro: int, bandwidth: float) -> float:
    """Backprop in micro-batches: a step is all of them and the flush."""
    cost, kind_s = network.bp, _of_kind(network.bp)
    bounds = [network.blocks * stage // devices for stage in range(devices + 1)]
    held = [high - low for low, high in zip(bounds, bounds[1:], strict=False)]

    def seconds(task: Task) -> float:
        return held[task.stage] * kind_s(task) / (1 if task.kind == "update" else micro)

    link_s = cost.output_bytes / micro / bandwidth
    schedule = PIPELINES[method](devices, micro)
    return simulate(schedule, seconds, 1, link_s=lambda task: link_s).span_s


def _data_parallel_s(network: Network, devices: int, bandwidth: float) -> float:
    cost = network.bp
    block_s = (cost.forward_s + cost.backward_s) / devices + cost.update_s
    sent = 2 * (devices - 1) / devices * network.blocks * cost.parameter_bytes
    return network.blocks * block_s + sent / bandwidth


def _of_kind(cost: BlockCost) -> Callable[[Task], float]:
    whole = {"forward": cost.forward_s, "backward": cost.backward_s, "update": cost.update_s}
    whole |= {kind: share * cost.backward_s for kind, share in PARTS.items()}
    return lambda task: whole[task.kind]


def _micro(network: Network) -> list[int]:
    return [m for m in range(1, network.samples + 1) if network.samples % m == 0]

"""Split learning from a notebook or a test: server and devices on one loop in this process.

    alkit.split.train(blocks, parts, cut=2, micro=4)

The same server and devices run as programs on machines of their own, see `alkit split`.
"""

import asyncio
import copy
import shutil
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from alkit.data.arguments import Brief, changed
from alkit.engine.caller import CallerState
from alkit.engine.device import Names, devices_named
from alkit.engine.optimizers import Factory
from alkit.models.blocks import sending_one
from alkit.schedule.timeline import Timeline
from alkit.split.device import Device, Job
from alkit.split.kept import Kept
from alkit.split.link import Link, pair
from alkit.split.networks import has_batch_norm
from alkit.split.rounds import RoundRecord
from alkit.split.schedule import LANES
from alkit.split.server import Server
from alkit.split.settings import Settings
from alkit.split.stream import Stream

TRANSPORTS = ("local", "grpc")
Part = tuple[Tensor, Tensor]


@dataclass(frozen=True, repr=False)
class Details(Brief):
    """What a run gave.

    Attributes:
        state: of the whole network.
        losses: of each device, in the order of its steps.
        rounds: one record each.
        samples: trained on in each round.
        timeline: four lanes a device; its batches are steps.
        sent_bytes, received_bytes: by the devices' last connections, in messages.
    """

    state: dict[str, Tensor]
    losses: dict[int, Tensor]
    rounds: tuple[RoundRecord, ...]
    samples: tuple[int, ...]
    timeline: Timeline
    sent_bytes: int
    received_bytes: int

    @property
    def accuracy(self) -> list[float | None]:
        """Of the averaged network after each round, if `evaluate` was given."""
        return [record.accuracy for record in self.rounds]


def train(
    blocks: Sequence[nn.Module],
    parts: Sequence[Part],
    *,
    cut: int | Sequence[int] = 1,
    micro: int | Sequence[int] = 1,
    transport: str = "local",
    device: Names | None = None,
    normal: tuple[Tensor, Tensor] | None = None,
    scaled: bool = True,
    evaluate: Callable[[dict[str, Tensor]], float | dict[str, float]] | None = None,
    path: Path | None = None,
    kept: Kept | None = None,
    optimizer: Factory | None = None,
    progress: bool = False,
    **settings: Any,
) -> Details:
    """Train a network whose head runs on devices and whose tail on a server; `blocks` stay as they
    are.

    Args:
        blocks: the units; a cut falls between them.
        parts: samples and labels of each device.
        cut: units on the device: 0 all on the server, all of them federated learning; one value,
            or one a device.
        micro: micro-batches per iteration, likewise.
        transport: "local", through queues, or "grpc", through loopback; the bits are the same.
        device: where heads and tail train: one for both, or one each; messages stay on the host.
            None is where the blocks are.
        normal: mean and standard deviation of channels, taken off images.
        scaled: bytes are brought to 0..1, see `Stream`.
        evaluate: gives the accuracy of a state after each round, or several numbers by name.
        path: of a checkpoint, see `Server`; devices keep theirs beside it, in PATH.devices.
        kept: tells whether it is of this run.
        optimizer: called as `optimizer(parameters, lr=...)`; default SGD with momentum.
        progress: show a bar over the rounds.
        settings: see `Settings`.
    Raises:
        ValueError: settings that don't fit; says what would.
        FloatingPointError: the training has diverged.
    """
    blocks = sending_one(blocks)
    heads, tail = _placed(blocks, device)
    cuts = (cut,) * len(parts) if isinstance(cut, int) else tuple(cut)
    micros = (micro,) if isinstance(micro, int) else tuple(micro)
    least = 2 if has_batch_norm(blocks) else 1
    fixed = {"units": len(blocks), "cuts": cuts, "micros": micros}
    chosen = changed(Settings, fixed | {"least": least} | settings)
    if len(cuts) != len(parts):
        raise ValueError(f"{len(parts)} parts and {len(cuts)} cuts: give one cut, or one a part")
    samples = [len(y) for _, y in parts]
    score = None if evaluate is None else lambda state: _named(evaluate(state))
    streams = [Stream(*own, chosen, at, normal, scaled=scaled) for at, own in enumerate(parts)]
    [example, *_] = streams[0].step(0, 1)
    options: dict[str, Any] = {"example": example.x[:1], "evaluate": score}
    options |= {"optimizer": optimizer, "path": path, "kept": kept}

    folder = None if path is None else path.with_name(f"{path.name}.devices")
    if folder is not None and path is not None and not path.exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a run whose checkpoint is gone

    def made(index: int) -> Device:
        job = Job(chosen, copy.deepcopy(heads), streams[index], optimizer)
        return Device(index, job, folder=folder, keeps=True)

    with CallerState.here().training():  # copies that inference mode makes can't be trained
        server = Server(tail, chosen, samples, **options)
        if folder is not None and 0 < server.round < server.rounds and not folder.exists():
            raise ValueError(
                f"{path} goes on after round {server.round}, and {folder}, with the optimisers of"
                " its devices, is not there: put it back, or delete the file to start anew"
            )
        about: dict[str, Any] = {"total": server.rounds, "initial": server.round}
        with tqdm(desc=server.settings.method, disable=not progress, leave=False, **about) as bar:
            server.report = lambda record: record.show(bar)
            return run(server, [made(index) for index in range(len(parts))], transport)


def _placed(
    blocks: list[nn.Module], device: Names | None
) -> tuple[list[nn.Module], list[nn.Module]]:
    """Return the network for devices and for the server, each where its half trains."""
    if device is None:
        return blocks, blocks
    found = devices_named(device)
    if len(found) > 2:
        raise ValueError(f"{len(found)} devices for heads and tail: give one for both, or two")
    heads, tail = (
        [unit.to(own) for unit in copy.deepcopy(blocks)] for own in (found[0], found[-1])
    )
    return heads, tail


def run(server: Server, devices: Sequence[Device], transport: str = "local") -> Details:
    """Run a server and its devices to the end, on a loop of a thread of its own.

    Raises:
        Exception: the first one of any of them.
    """
    if transport not in TRANSPORTS:
        raise ValueError(f"transport is {transport!r}: give {', '.join(TRANSPORTS)}")
    return _record(server, in_own_loop(lambda: _all_of_them(server, devices, transport)))


def in_own_loop(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Return what a coroutine gives: a notebook's own loop runs already, and would wait for it."""
    loop, tasks = asyncio.new_event_loop(), list["asyncio.Task[Any]"]()

    def body() -> Any:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(noted())

    async def noted() -> Any:
        tasks.extend(filter(None, [asyncio.current_task()]))
        return await work()

    with ThreadPoolExecutor(1, "alkit-loop") as thread:
        done = thread.submit(CallerState.here().run, body)
        try:
            return done.result()
        except BaseException:
            if not done.done():  # the caller was interrupted: all parties end
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            raise


async def _all_of_them(server: Server, devices: Sequence[Device], transport: str) -> list[Link]:
    """Run all parties on this loop; return the devices' links."""
    links, joined = list[Link](), set["asyncio.Task[None]"]()
    ahead = 2 * max(server.settings.micros) + 4

    async def by_queues(index: int) -> Link:
        near, far = pair(f"device {index}", "server", ahead)
        joined.add(asyncio.create_task(server.join(far)))
        return near

    async def parties(reach: Callable[[int], Awaitable[Link]]) -> None:
        async def connected(index: int) -> Link:
            links.append(await reach(index))
            return links[-1]

        jobs = [asyncio.create_task(server.run())]
        jobs += [asyncio.create_task(own.run(partial(connected, own.index))) for own in devices]
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_EXCEPTION)
            if server.lobby.last is not None:  # it ends: why is its own to say, not a device's
                done |= (await asyncio.wait(jobs[:1]))[0]
            for job in jobs:
                if job in done:
                    job.result()
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, *joined, return_exceptions=True)

    if transport == "local":
        await parties(by_queues)
        return links
    from alkit.split.grpc_link import connect, listen

    async with listen(server.join, ahead=ahead, streams=2 * len(devices)) as port:
        await parties(lambda index: connect(f"127.0.0.1:{port}", ahead=ahead))
    return links


def _record(server: Server, links: Sequence[Link]) -> Details:
    losses: dict[int, list[float]] = {at: [] for at in range(server.settings.devices)}
    for record in server.records:
        for at, own in record.losses.items():
            losses[at] += own
    lanes = [f"{lane} {at}" for at in losses for lane in LANES]
    seen = [interval for record in server.records for interval in record.intervals]
    return Details(
        state=server.state,
        losses={at: torch.tensor(own) for at, own in losses.items()},
        rounds=tuple(server.records),
        samples=tuple(sum(record.weights.values()) for record in server.records),
        timeline=Timeline.of(seen, lanes),
        sent_bytes=sum(link.sent_bytes for link in links),
        received_bytes=sum(link.received_bytes for link in links),
    )


def _named(score: float | dict[str, float]) -> dict[str, float]:
    return score if isinstance(score, dict) else {"accuracy": score}

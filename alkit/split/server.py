"""The server drives: a round is one coroutine a device, and an average.

    join          a connection says who has come, and stays until it is lost
    _round        a `_take_part` for each device; waits for all of them; averages
    _take_part    a device's round, begun anew whenever its link was lost, until it is done

All of it runs on one loop; what computes runs in a pool of one thread a device.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from alkit.engine.optimizers import Factory
from alkit.split.average import average
from alkit.split.check import DIVERGED, Check
from alkit.split.choosing import Choosing
from alkit.split.greeting import Greeting
from alkit.split.halves import Tail, factory_of, kept, state_of
from alkit.split.kept import Kept
from alkit.split.link import Link, Lost, Refused
from alkit.split.lobby import Lobby
from alkit.split.member import Member
from alkit.split.pools import Pool, in_thread
from alkit.split.rounds import Assignment, Attendance, Contribution, RoundRecord
from alkit.split.server_round import ServerRound
from alkit.split.settings import Settings
from alkit.split.stream import round_count, round_steps
from alkit.split.turns import Turns, turns_of
from alkit.split.wire import Message

log = logging.getLogger(__name__)


class DeviceLost(ConnectionError):
    """A device did not come, or did not come back."""


class Server:
    """The server of one run.

    Args:
        units: the whole network with its initial weights, which stay as they are.
        samples: of each device.
        example: the input of one of them (1, ...), as the network takes it.
        name: of the job; a device must say the same.
        evaluate: gives scores of a network's state, after each round: "accuracy", ...
        path: of a checkpoint, written at each round's beginning and at the end; read if it is
            there.
        kept: tells whether a checkpoint is of this run.
        choosing: chooses cuts and micro-batches, which are the settings' without it.
        optimizer: makes the tail's, see `alkit.split.device.Job`.
        profile: repetitions of the devices' profiles, for `choosing`.
        report: called with each round's record, on another thread.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        settings: Settings,
        samples: Sequence[int],
        *,
        example: Tensor,
        name: str = "",
        evaluate: Callable[[dict[str, Tensor]], dict[str, float]] | None = None,
        path: Path | None = None,
        kept: Kept | None = None,
        choosing: Choosing | None = None,
        profile: int = 0,
        optimizer: Factory | None = None,
        report: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        if len(samples) != settings.devices:
            raise ValueError(f"{len(samples)} sizes for {settings.devices} devices: give one each")
        self.units, self.settings, self.name, self.path = list(units), settings, name, path
        self.kept, self.evaluate, self.report = kept or Kept(), evaluate, report
        self.choosing = choosing
        self.optimizer = factory_of(settings, optimizer)
        cuts = settings.cuts if choosing is None else range(1, len(units))
        self.check, self.state = Check(units, example, cuts), state_of(units)
        choices = zip(samples, settings.cuts, settings.micros, strict=True)
        self.members = [
            Member(at, own, (cut, micro), Pool(settings.threads))
            for at, (own, cut, micro) in enumerate(choices)
        ]
        self.shared = self._new_tail(0, settings.cuts[0]) if settings.rules.shared else None
        self.handed: Any = None  # state of the optimiser of a tail that is handed on
        self.rounds, self.records = round_count(settings, list(samples)), list[RoundRecord]()
        self.orders = Attendance()  # of the open round
        self.turns: Turns | None = None
        self.started_s = 0.0
        self.running: asyncio.Task[Any] | None = None
        self.fault: Exception | None = None  # of ours, where nobody but the run can raise it
        self.saving = asyncio.Lock()
        about: dict[str, Any] = {"profile": profile if choosing else 0, "choose": self._choose}
        self.lobby = Lobby(name, settings, self.members, fault=self._fail, **about)
        if path is not None and path.exists():
            self._restore(path)

    @property
    def round(self) -> int:
        """Number of the round that is open, or comes next."""
        return len(self.records)

    # ---- the run

    async def run(self) -> dict[str, Tensor]:
        """Train to the end, and return the network's state.

        Raises:
            DeviceLost: a device is away for longer than `Settings.join_s`.
            FloatingPointError: the training has diverged.
        """
        self.running = asyncio.current_task()
        try:
            while self.round < self.rounds:
                await self._save()
                record = await self._round()
                if self.report is not None:
                    await in_thread(self.report, record)
            await self._save()
            await self.lobby.say_goodbye(Message("bye", self.round, tensors=self.state))
            return self.state
        except BaseException as error:
            error = self.fault or error
            text = f"the server ends: {error}"
            await self.lobby.say_goodbye(Message("error", values={"text": text}))
            raise error
        finally:
            for member in self.members:
                member.pool.close()

    async def join(self, link: Link) -> None:
        """Serve a link to its end, see `Lobby.join`."""
        await self.lobby.join(link)

    def _fail(self, error: Exception) -> None:
        self.fault = error
        if self.running is not None:
            self.running.cancel()

    async def _choose(self, member: Member, greeting: Greeting) -> None:
        """Set what a device does that has come for the first time in this run."""
        assert self.choosing is not None  # else no device is asked for a profile
        if member.planned:
            return
        told: Any = member.index, greeting.machine, greeting.speeds
        member.choice = self.choosing.choose(*told)
        member.planned = True
        await self._save()

    # ---- a round

    async def _round(self) -> RoundRecord:
        steps = [round_steps(self.settings, own.samples, self.round) for own in self.members]
        due = [member for member in self.members if steps[member.index]]
        await self._there(due)
        self.orders, self.started_s = Attendance(), 0.0
        for member in due:
            own = Assignment(*member.choice, steps[member.index], fresh=True)
            self.orders[member.index] = own
        self.turns = self._turns()
        tasks = {at: asyncio.create_task(self._take_part(self.members[at])) for at in self.orders}
        try:
            made = await asyncio.gather(*tasks.values())
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return await self._close(dict(zip(tasks, made, strict=True)))

    async def _there(self, members: Sequence[Member]) -> None:
        """Wait until devices have come, or have come back.

        Raises:
            DeviceLost: one is away for too long.
        """
        limit_s = self.settings.join_s
        try:
            async with asyncio.timeout(limit_s), self.lobby.changed:  # wait_for may lose a cancel
                await self.lobby.changed.wait_for(lambda: all(own.link for own in members))
        except TimeoutError:
            away = ", ".join(str(own.index) for own in members if own.link is None)
            told = f"round {self.round}: device {away} is away for more than {limit_s:g} s (join_s)"
            raise DeviceLost(f"{told}: start it again, then the server") from None

    def _turns(self) -> Turns | None:
        """Set up the turns at a tail that all devices share, if there is one."""
        if self.shared is None:
            return None
        if self.settings.rules.tail == "drawn":
            self.shared.load(self.state)
            self.shared.set_rates(self.settings.factor(self.round))
        return Turns(turns_of(self.settings, self.orders, self.round))

    async def _take_part(self, member: Member) -> Contribution:
        """Run a device's round, anew after each loss, until it is done."""
        while True:
            await self._there([member])
            link = member.link
            if link is None:  # gone again
                continue
            try:
                return await self._train(member, link)
            except (Lost, Refused) as error:
                log.info("lost device %d: %s", member.index, error)
                await self.lobby.lost(member, link)
                if self.settings.rules.tail == "drawn":
                    told = f"round {self.round}: device {member.index} is lost: {error}"
                    raise DeviceLost(f"{told}; there is no way back into a drawn order") from error

    async def _train(self, member: Member, link: Link) -> Contribution:
        kind, number, at = self.settings.rules.tail, self.round, member.index
        async with AsyncExitStack() as turn:
            if kind == "handed on":
                assert self.turns is not None
                await turn.enter_async_context(self.turns.turn(0, at))
            self.started_s = self.started_s or time.perf_counter()
            order = self.orders[at] = self._with_optimizers(member, self.orders[at])
            tail = self._tail(member, order.cut)
            await member.pool.run(self._begin, member, tail, order)
            assert member.greeting is not None  # it has come
            offset_s = member.greeting.offset_s
            about = number, at, member.samples, order, self.state, tail, self.settings
            own = ServerRound(*about, member.pool.run, self.turns, offset_s)
            member.known.add((number, order.cut))
            made = await own.run(link)
            member.known.add((number + 1, order.cut))
            if kind == "own":
                member.saved = kept(member.saved, (number + 1, order.cut), tail)
            if kind == "handed on":
                self.state, self.handed = made.state, tail.optimizer_state()
        return made

    def _with_optimizers(self, member: Member, order: Assignment) -> Assignment:
        """Say whether both sides have the optimisers with which the round before this one ended."""
        key = self.round, order.cut
        before = self.records[-1].attendance.get(member.index) if self.records else None
        there = before is not None and before.cut == order.cut and key in member.known
        both = there and (self.shared is not None or key in member.saved)
        return order._replace(fresh=not both)

    def _begin(self, member: Member, tail: Tail, order: Assignment) -> None:
        """Set a tail up for the round's beginning; a drawn one is, for all devices."""
        kind, factor = self.settings.rules.tail, self.settings.factor(self.round)
        if kind == "drawn":
            return
        tail.drop()
        tail.load(self.state)
        if kind == "handed on":
            return tail.load_optimizer(self.handed, factor)
        key = self.round, order.cut
        tail.load_optimizer(None if order.fresh else member.saved[key], factor)
        member.saved = kept(member.saved, key, tail)

    # ---- its end

    async def _close(self, made: Mapping[int, Contribution]) -> RoundRecord:
        """Average what the devices have handed in, and record the round."""
        start_s = time.perf_counter()
        state = await in_thread(self._averaged, dict(made))
        end_s = time.perf_counter()
        scores = await in_thread(self.evaluate, state) if self.evaluate is not None else {}
        record = RoundRecord(
            attendance=Attendance({at: self.orders[at] for at in made}),
            weights={at: own.samples for at, own in made.items()},
            losses={at: own.losses for at, own in made.items()},
            right={at: own.right for at, own in made.items()},
            scores=scores,
            seconds=end_s - (self.started_s or end_s),
            intervals=[interval for own in made.values() for interval in own.intervals],
            averaging_s=end_s - start_s,
            sizes={at: own.sizes for at, own in made.items()},
        )
        self.records.append(record)
        self.state, self.orders = state, Attendance()
        return record

    def _averaged(self, made: Mapping[int, Contribution]) -> dict[str, Tensor]:
        """Return the state that the next round begins with.

        Raises:
            FloatingPointError: the network gives no finite scores with it.
        """
        if self.settings.rules.tail == "handed on" or not made:
            return self.state  # which was handed on from device to device
        states, samples = zip(*[(own.state, own.samples) for own in made.values()], strict=True)
        state = average(states, samples)
        state |= {} if self.shared is None else self.shared.state()
        if not self.check.runs(state):
            raise FloatingPointError(f"round {self.round}: the average of all weights {DIVERGED}")
        return state

    def _tail(self, member: Member, cut: int) -> Tail:
        """Return the tail that a device trains with, in whatever state it is."""
        if self.shared is not None:
            return self.shared
        if member.tail is None or member.tail.first != cut:
            member.tail = self._new_tail(member.index, cut)
        return member.tail

    def _new_tail(self, device: int, cut: int) -> Tail:
        units = copy.deepcopy(self.units)[cut:]
        return Tail(units, self.optimizer, first=cut, seed=self.settings.seed, device=device)

    # ---- the checkpoint: all that the next round begins with; devices keep their own optimisers

    async def _save(self) -> None:
        if self.path is not None:
            async with self.saving:  # one after the other: the newest state is written last
                await in_thread(self.kept.write, self.path, self._snapshot())

    def _snapshot(self) -> dict[str, Any]:
        saved = [
            [[list(key), state] for key, state in member.saved.items() if key[0] == self.round]
            for member in self.members
        ]
        return {
            "job": self.name,
            "settings": self.settings.plain(),
            "round": self.round,
            "state": self.state,
            "optimizers": saved,
            "handed": self.handed,
            "shared": None if self.shared is None else self.shared.optimizer_state(),
            "choices": [list(member.choice) for member in self.members],
            "planned": [member.index for member in self.members if member.planned],
            "records": [record.plain() for record in self.records],
        }

    def _restore(self, path: Path) -> None:
        """Put a new server where a checkpoint says."""
        saved = self.kept.read(path, self.name, self.settings, self.state)
        self.state, self.handed = dict(saved["state"]), saved["handed"]
        for member, rows in zip(self.members, saved["optimizers"], strict=True):
            member.choice = tuple(saved["choices"][member.index])
            member.planned = member.index in saved["planned"]
            member.saved = {tuple(key): state for key, state in rows}
        if self.shared is not None and saved["shared"] is not None:
            self.shared.load_optimizer(saved["shared"])
        self.records = [RoundRecord.read(record) for record in saved["records"]]

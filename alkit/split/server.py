"""The server drives: a round is one coroutine a device, and an average.

    join          a connection says who has come, and stays until it is lost
    _round        a `_take_part` for each device; waits for all, or for long enough; averages
    _take_part    a device's round, begun anew whenever its link was lost, until it is done

All of it runs on one loop; what computes runs in a pool of one thread a device.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from alkit.engine.optimizers import Factory
from alkit.split.check import Check
from alkit.split.choosing import Choosing
from alkit.split.closing import averaged
from alkit.split.greeting import Greeting
from alkit.split.halves import Tail, factory_of, kept, state_of
from alkit.split.kept import Kept
from alkit.split.link import Link, Lost, Refused
from alkit.split.lobby import Lobby
from alkit.split.member import Member
from alkit.split.orders import ordered
from alkit.split.pools import Pool, in_thread
from alkit.split.rounds import Assignment, Attendance, Contribution, RoundRecord
from alkit.split.server_round import ServerRound
from alkit.split.settings import Settings
from alkit.split.stream import round_count
from alkit.split.turns import Turns, turns_of
from alkit.split.waiting import LeftOut, Watch, is_done
from alkit.split.wire import Message, WireError

log = logging.getLogger(__name__)

STALLS, STALL_S = 3, 0.5  # rounds in a row in which others waited so long for a device in vain


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
        plan: attendances of a recorded run: who takes part is taken from there, and whoever is not
            in it is not waited for.
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
        plan: Sequence[Attendance] | None = None,
        choosing: Choosing | None = None,
        profile: int = 0,
        optimizer: Factory | None = None,
        report: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        if len(samples) != settings.devices:
            raise ValueError(f"{len(samples)} sizes for {settings.devices} devices: give one each")
        self.units, self.settings, self.name, self.path = list(units), settings, name, path
        self.kept, self.evaluate, self.plan, self.report = kept or Kept(), evaluate, plan, report
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
        self.lobby = Lobby(name, settings, self.check, self.members, fault=self._fail, **about)
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
            QuorumLost: too few devices came, or are left.
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

    async def join(self, link: Link, identity: int | None = None) -> None:
        """Serve a link to its end, see `Lobby.join`."""
        await self.lobby.join(link, identity)

    def _fail(self, error: Exception) -> None:
        self.fault = error
        if self.running is not None:
            self.running.cancel()

    async def _choose(self, member: Member, greeting: Greeting) -> None:
        """Set what a device does that has come for the first time in this run."""
        assert self.choosing is not None  # else no device is asked for a profile
        told: Any = member.index, greeting.machine, greeting.speeds
        if member.planned:
            return self.choosing.meet(*told)
        try:
            member.choice = cut, micro = self.choosing.first(*told)
        except ValueError as error:  # what it says of itself leaves no choice
            raise WireError(f"device {member.index} can't be planned for: {error}") from error
        member.planned = True
        await self._save()
        if (own := self.orders.get(member.index)) is not None:
            self.orders[member.index] = own._replace(cut=cut, micro=micro)

    # ---- a round

    async def _round(self) -> RoundRecord:
        self.orders = ordered(self.settings, self.members, self.round, self.plan)
        self.started_s, self.lobby.round = 0.0, self.round
        for member in self.members:  # one that was lost before counts from now
            gone = member.came and member.link is None
            member.lost_s = time.monotonic() if gone else None
        await self._gather()
        self.turns = self._turns()
        tasks = {at: asyncio.create_task(self._take_part(self.members[at])) for at in self.orders}
        watch = Watch(self.round, self.settings, self.members, self.turns, self._leave_out)
        try:
            await watch.wait(tasks)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        made = {at: task.result() for at, task in tasks.items() if is_done(task)}
        return await self._close(made)

    async def _gather(self) -> None:
        """Let the first round of this server begin for all at once; who is late stops nobody."""
        if any(member.came for member in self.members):
            return
        limit_s = self.settings.grace_s if self.records else self.settings.join_s
        async with self.lobby.changed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.lobby.changed.wait_for(self._all_known), limit_s)

    def _all_known(self) -> bool:
        """Whether everybody who is due has come, or was refused."""
        due = (self.members[at] for at in self.orders)
        return all(own.link is not None or own.refused_in == self.round for own in due)

    def _turns(self) -> Turns | None:
        """Set up the turns at a tail that all devices share, if there is one."""
        if self.shared is None:
            return None
        if self.settings.rules.tail == "drawn":
            self.shared.load(self.state)
            self.shared.set_rates(self.settings.factor(self.round))
        return Turns(turns_of(self.settings, self.orders, self.round))

    async def _take_part(self, member: Member) -> Contribution:
        """Run a device's round, anew after each loss, until it is done.

        Raises:
            LeftOut: it sends nonsense, or can't come back; says why.
        """
        while True:
            async with self.lobby.changed:
                await self.lobby.changed.wait_for(lambda: member.link is not None)
            link = member.link
            assert link is not None  # it has come
            try:
                return await self._train(member, link)
            except (Lost, Refused) as error:
                log.info("lost device %d: %s", member.index, error)
                await self.lobby.lost(member, link)
                if self.settings.rules.tail != "drawn":
                    continue
                member.dropped = f"{error}; there is no way back into a drawn order"
            except WireError as error:
                self.lobby.warn("dropped", member.index, link, error)
                member.dropped = str(error)
                await self.lobby.refuse(link, error)
                await self.lobby.lost(member, link)
            await self._pass_over(member.index)
            raise LeftOut(member.dropped)

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
            own = ServerRound(*about, self.check, member.pool.run, self.turns, offset_s)
            member.known.add((number, order.cut))
            made = await own.run(link)
            member.known.add((number + 1, order.cut))
            if kind == "own":
                member.saved = kept(member.saved, (number + 1, order.cut), tail)
            if kind == "handed on":
                self.state, self.handed = made.state, tail.optimizer_state()
        member.stalls = 0
        return made

    def _with_optimizers(self, member: Member, order: Assignment) -> Assignment:
        """Say whether both sides have the optimisers with which the round before this one ended.

        What a side may have of a round that was averaged without it belongs to no average.
        """
        if self.plan is not None:
            return order
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

    async def _leave_out(
        self, at: int, task: "asyncio.Task[Contribution]", why: str, waited_s: float
    ) -> None:
        log.warning("device %d is left out of round %d: %s", at, self.round, why)
        member = self.members[at]
        member.dropped = why
        member.stalls += waited_s > STALL_S
        if member.stalls >= STALLS:
            member.out = f"device {at} has kept {STALLS} rounds in a row waiting: it is out"
            log.warning("%s", member.out)
        task.cancel()
        await asyncio.wait([task])
        if member.link is not None:
            member.link.close()
        await self._pass_over(at)

    async def _pass_over(self, at: int) -> None:
        if self.turns is not None:
            await self.turns.leave(at)

    # ---- its end

    async def _close(self, made: Mapping[int, Contribution]) -> RoundRecord:
        """Average what the devices have handed in, and record the round."""
        start_s = time.perf_counter()
        done, state = await in_thread(self._averaged, dict(made))
        end_s = time.perf_counter()
        scores = await in_thread(self.evaluate, state) if self.evaluate is not None else {}
        record = RoundRecord(
            attendance=Attendance({at: self.orders[at] for at in done}),
            weights={at: own.samples for at, own in done.items()},
            losses={at: own.losses for at, own in done.items()},
            right={at: own.right for at, own in done.items()},
            scores=scores,
            seconds=end_s - (self.started_s or end_s),
            intervals=[interval for own in done.values() for interval in own.intervals],
            averaging_s=end_s - start_s,
            sizes={at: own.sizes for at, own in done.items()},
        )
        if self.choosing is not None:
            for member in (self.members[at] for at in done):
                member.choice = self.choosing.again(member.index, record) or member.choice
        self.records.append(record)
        self.state, self.orders = state, Attendance()
        return record

    def _averaged(
        self, done: dict[int, Contribution]
    ) -> tuple[dict[int, Contribution], dict[str, Tensor]]:
        """Return whose networks count, and the state that the next round begins with."""
        if self.settings.rules.tail == "handed on" or not done:
            return done, self.state  # which was handed on from device to device
        shared = {} if self.shared is None else self.shared.state()

        def runs(state: dict[str, Tensor]) -> bool:
            return self.check.runs(state | shared)

        state, blamed = averaged(self.round, self.state, done, runs, self.settings)
        for at, why in blamed.items():
            self.members[at].dropped = why
        return {at: own for at, own in done.items() if at not in blamed}, state | shared

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

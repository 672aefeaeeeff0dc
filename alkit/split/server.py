"""The server as a state machine: who is there, which round is open, who has done it.

    a connection's thread          join -> hello, welcome -> [start -> iterations -> done] -> bye
                                                |                              |
    shared, under one lock         connected, lost        open round        contributions
                                                |                              |
    the run's thread               open a round -> wait for all, or for who is left -> average ->
                                   checkpoint -> next round

A device that is lost keeps its place in the open round: it may come back and go on from the last
step that both sides have, or from the round's beginning. When all others are done and `grace_s`
has passed, the round is averaged without it, if a quorum is there; it may join the next one.
"""

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from alkit.data.seeds import generator_for
from alkit.engine.caller import CallerState
from alkit.engine.local import operator_threads
from alkit.split.channel import Channel, ChannelLost, beating
from alkit.split.checkpoints import restore, save
from alkit.split.choosing import Choosing
from alkit.split.expect import Expect
from alkit.split.greeting import Unwanted, refuse, welcome
from alkit.split.halves import Tail, average, sgd, state_of
from alkit.split.profile import Link, Machine
from alkit.split.replica import Contribution, Order, Replica
from alkit.split.rounds import Attendance, RoundRecord
from alkit.split.settings import Settings
from alkit.split.stream import round_count, round_steps
from alkit.split.turns import Turnstile
from alkit.split.waiting import QuorumLost, gather, wait_for_all
from alkit.split.wire import STATE, Message, WireError

__all__ = ["QuorumLost", "Server"]

log = logging.getLogger(__name__)

GOODBYE_S = 60.0  # for the final weights to reach a device


class Server:
    """The server of one run.

    Args:
        units: the whole network with its initial weights, which stay as they are.
        samples: of each device.
        example: the input of one of them (1, ...), as the network takes it.
        name: of the job; a device must say the same.
        job: what devices are told, names and numbers only.
        evaluate: gives scores of a network's state, after each round: "accuracy", ...
        path: of a checkpoint, written at each round's beginning; read if it is there.
        plan: attendances of a recorded run: who takes part is taken from there, and whoever is not
            in it is not waited for.
        choosing: chooses cuts and micro-batches, which are the settings' without it.
        profile: repetitions of the devices' profiles, for `choosing`.
        report: called with each round's record.
    """

    def __init__(
        self,
        units: Sequence[nn.Module],
        settings: Settings,
        samples: Sequence[int],
        *,
        example: Tensor,
        name: str = "",
        job: Mapping[str, Any] | None = None,
        evaluate: Callable[[dict[str, Tensor]], dict[str, float]] | None = None,
        path: Path | None = None,
        plan: Sequence[Attendance] | None = None,
        choosing: Choosing | None = None,
        profile: int = 0,
        report: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        if len(samples) != settings.devices:
            raise ValueError(f"{len(samples)} sizes for {settings.devices} devices: give one each")
        self.units, self.settings, self.samples = list(units), settings, list(samples)
        self.name, self.job, self.path = name, dict(job or {}), path
        self.evaluate, self.plan, self.report = evaluate, plan, report
        self.choosing, self.profile = choosing, profile if choosing else 0
        self.condition = threading.Condition()
        self.caller = CallerState.here()
        self.state = state_of(units)
        self.rounds = round_count(settings, self.samples)
        self.round, self.over = 0, False
        self.needed = 0  # contributions without which the open round is not averaged
        self.gate = False  # shut until the devices of the first round have come
        self.opened_s = self.started_s = 0.0  # of the open round: when, and its first device
        self.choices = list(zip(settings.cuts, settings.micros, strict=True))
        self.planned: set[int] = set()  # devices whose choice is made, and stays after a restart
        self.shared: Tail | None = None  # the tail of `split` and `splitfed2`
        self.shared_optimizer: Any = None  # as of the last turn that came to its end
        self.turnstile: Turnstile | None = None
        self.expect = Expect(units, example)
        self.replicas = [
            Replica(at, own, settings, self.expect, self.tail_of)
            for at, own in enumerate(self.samples)
        ]
        self.channels: dict[int, Channel] = {}
        self.known: dict[int, set[tuple[int, int]]] = {}  # optimisers that the devices have
        self.live: dict[int, tuple[int, int]] = {}  # round and step that came with a hello
        self.lost_s: dict[int, float] = {}
        self.said: set[Any] = set()  # in the log
        self.dropped: dict[int, str] = {}  # why, until they come again
        self.orders = Attendance()
        self.contributions: dict[int, Contribution] = {}
        self.records: list[RoundRecord] = []
        self.failure: BaseException | None = None
        if path is not None and path.exists():
            restore(self, path)

    # ---- the run's thread

    def run(self) -> dict[str, Tensor]:
        """Train to the end, and return the network's state.

        Raises:
            QuorumLost: too few devices came, or are left.
        """
        try:
            while self.round < self.rounds:
                self._run_round()
        except BaseException as error:
            self.stop(error)
            raise
        with self.condition:
            self.over = True
            self.condition.notify_all()
        return self.state

    def stop(self, error: BaseException) -> None:
        """End all connections: the run is over for a reason."""
        with self.condition:
            self.failure, self.over = self.failure or error, True
            self.condition.notify_all()
            if self.turnstile is not None:
                self.turnstile.stop()
            for channel in self.channels.values():
                channel.close()

    def _run_round(self) -> None:
        with self.condition:
            if self.path is not None:
                save(self, self.path)
            self._open()
            if not self.gate:
                gather(self)
            wait_for_all(self)
            done = dict(sorted(self.contributions.items()))
            attendance = Attendance({at: self.orders[at] for at in done})
        average_s = time.perf_counter()
        state = self._averaged(done)
        end_s = time.perf_counter()
        scores = self.evaluate(state) if self.evaluate is not None else {}
        record = RoundRecord(
            attendance=attendance,
            weights={at: own.samples for at, own in done.items()},
            losses={at: own.losses for at, own in done.items()},
            right={at: own.right for at, own in done.items()},
            scores=scores,
            seconds=end_s - (self.started_s or end_s),
            intervals=[interval for own in done.values() for interval in own.intervals],
            averaging_s=end_s - average_s,
        )
        if self.choosing is not None:
            for at in done:
                self.choices[at] = self.choosing.again(at, record) or self.choices[at]
        with self.condition:
            self.records.append(record)
            self.state, self.round = state, self.round + 1
            self.orders, self.contributions = Attendance(), {}
            self.condition.notify_all()
        if self.report is not None:
            self.report(record)

    def _open(self) -> None:
        """Say who is to do what in this round."""
        for at, (cut, micro) in enumerate(self.choices):
            steps = round_steps(self.settings, self.samples[at], micro, self.round)
            if self.plan is not None:
                if at not in self.plan[self.round]:
                    continue
                order = self.plan[self.round][at]
            else:
                order = Order(cut, micro, steps, fresh=True)
            if len(order.steps):
                self.orders[at] = order
        gone = [at for at in self.orders if at in self.dropped and at not in self.channels]
        if len(self.orders) - len(gone) >= self.settings.quorum:
            for at in gone:
                del self.orders[at]
        if self.settings.method == "splitfed2":
            self.tail_of(0, self.settings.cuts[0]).load(self.state)
            steps = {at: order.steps for at, order in self.orders.items()}
            self.turnstile = Turnstile(steps, self._drawn_order)
        self.needed = min(self.settings.quorum, len(self.orders))
        self.opened_s, self.started_s = time.monotonic(), 0.0
        self.condition.notify_all()

    def _drawn_order(self, at: int) -> list[int]:
        draw = generator_for(self.settings.seed, "turns", self.round, at)
        return torch.randperm(self.settings.devices, generator=draw).tolist()

    def _averaged(self, done: Mapping[int, Contribution]) -> dict[str, Tensor]:
        """Return the state that the next round begins with."""
        if not done or self.settings.method == "split":
            return self.state  # which was handed on from device to device
        weights = [own.samples for own in done.values()]
        state = average([own.state for own in done.values()], weights)
        return state if self.shared is None else state | self.shared.state()

    # ---- the connections' threads

    def join(self, channel: Channel, identity: int | None = None) -> None:
        """Serve one connection to its end; returns, whatever the device does.

        Args:
            identity: number of the device that the transport has made sure of; None if it can't.
        """
        index = None
        try:
            index = self._admit(channel, identity)
            settings = self.settings
            with operator_threads(settings.threads), self.caller.training():
                with beating(channel, settings.heartbeat_s):
                    self._serve(channel, index)
        except Unwanted as error:
            self._warn("refused", identity, channel, error)
            refuse(channel, str(error))
        except WireError as error:
            self._drop(identity if index is None else index, channel, error)
            refuse(channel, str(error))
        except ChannelLost as error:
            log.info("lost %s: %s", channel.peer, error)
        except BaseException as error:  # a fault of ours: the run's thread raises it
            self.stop(error)
        finally:
            self._gone(index, channel)
            channel.close()

    def _admit(self, channel: Channel, identity: int | None) -> int:
        job = self.job | {"settings": self.settings.plain()}
        options = self.name, self.settings.devices, identity, self.profile
        hello = welcome(channel, self.expect, job, *options)
        with self.condition:
            if hello.machine is not None and hello.link is not None:
                self._choose(hello.device, hello.machine, hello.link)
            if (before := self.channels.get(hello.device)) is not None:
                before.close()  # its thread may be at work on the tail: wait until it has left
                self.condition.wait_for(lambda: self.channels.get(hello.device) is not before)
            self.channels[hello.device] = channel
            self.dropped.pop(hello.device, None)
            self.known[hello.device] = set(hello.saved)
            self.live[hello.device] = hello.round, hello.step
            self.replicas[hello.device].offset_s = hello.offset_s
            self.condition.notify_all()
        return hello.device

    def _choose(self, index: int, machine: Machine, link: Link) -> None:
        """Set what a device does that has come for the first time in this run."""
        assert self.choosing is not None
        if index in self.planned:
            return self.choosing.meet(index, machine, link)
        try:
            cut, micro = self.choices[index] = self.choosing.first(index, machine, link)
        except ValueError as error:  # what it says of itself leaves no choice
            raise WireError(f"device {index} can't be planned for: {error}") from error
        self.planned.add(index)
        if self.path is not None:
            save(self, self.path)
        if index in self.orders:
            order = self.orders[index]
            self.orders[index] = Order(cut, micro, order.steps, order.fresh)

    def _serve(self, channel: Channel, index: int) -> None:
        while True:
            with self.condition:
                self.condition.wait_for(lambda: self._may_start(channel, index))
                if self.channels.get(index) is not channel:
                    raise ChannelLost(f"device {index} has connected anew")
                if self.over:
                    break
                order, resumes = self._order(index)
            self._start(channel, index, order, resumes)
            turns = {} if self.turnstile is None else {"turns": self.turnstile.of(index)}
            contribution = self.replicas[index].serve(channel, **turns)
            with self.condition:
                if self.channels.get(index) is not channel:
                    raise ChannelLost(f"device {index} has connected anew")
                self.contributions[index] = contribution
                self.known[index].add((self.round + 1, order.cut))
                if self.settings.method == "split":
                    self.state = contribution.state
                    self.shared_optimizer = self.shared.optimizer_state()
                self.condition.notify_all()
        if self.failure is not None:
            return refuse(channel, f"the server ends: {self.failure}")
        final = {STATE + key: tensor for key, tensor in self.state.items()}
        channel.send(Message("bye", round=self.round, tensors=final))
        end_s = time.monotonic() + 10 * GOODBYE_S  # heartbeats alone keep nobody here
        with suppress(ChannelLost):
            while time.monotonic() < end_s:  # the device ends the stream once it has all of it
                channel.receive(GOODBYE_S)

    def _may_start(self, channel: Channel, index: int) -> bool:
        if self.over or self.channels.get(index) is not channel:
            return True
        if not self.gate or index not in self.orders or index in self.contributions:
            return False
        if self.settings.method != "split":
            return True
        before = [at for at in self.orders if at < index]
        return all(at in self.contributions for at in before)

    def _order(self, index: int) -> tuple[Order, bool]:
        """Return what the device is to do, and whether it goes on where it was."""
        order, replica = self.orders[index], self.replicas[index]
        round_, step = self.live.pop(index, (-1, -1))
        if round_ == self.round == replica.round and replica.can_resume(round_, step):
            replica.resume(step)
            return self.orders[index], True
        if self.plan is None:
            fresh = not self._both_know(index, order.cut)
            self.orders[index] = order = Order(order.cut, order.micro, order.steps, fresh)
        return order, False

    def _both_know(self, index: int, cut: int) -> bool:
        """Whether both sides have the optimisers with which the last round ended."""
        before = self.records[-1].attendance.get(index) if self.records else None
        if before is None or before.cut != cut:
            return False  # what a side may have belongs to a round that was averaged without it
        key = self.round, cut
        there = self.settings.shared_tail or key in self.replicas[index].saved
        return there and key in self.known[index]

    def _start(self, channel: Channel, index: int, order: Order, resumes: bool) -> None:
        replica = self.replicas[index]
        tensors = {}
        self.started_s = self.started_s or time.perf_counter()
        if not resumes:
            replica.begin(self.round, order, self.state, self.shared_optimizer)
            tensors = {
                STATE + key: tensor
                for key, tensor in self.state.items()
                if int(key.partition(".")[0]) < order.cut
            }
        values = {
            "cut": order.cut, "micro": order.micro, "fresh": order.fresh, "resume": resumes,
            "first": order.steps.start, "last": order.steps.stop, "step": replica.steps_done,
        }  # fmt: skip
        channel.send(Message("start", round=self.round, values=values, tensors=tensors))

    def _gone(self, index: int | None, channel: Channel) -> None:
        with self.condition:
            if index is not None and self.channels.get(index) is channel:
                self.lose(index, self.dropped.get(index, ""))
            self.condition.notify_all()

    def _drop(self, index: int | None, channel: Channel, error: WireError) -> None:
        """Leave a device that sends nonsense out of the open round."""
        self._warn("dropped", index, channel, error)
        with self.condition:
            if index is not None and self.channels.get(index, channel) is channel:
                self.lose(index, str(error))

    def _warn(self, what: str, index: int | None, channel: Channel, error: WireError) -> None:
        """Write a line once: who comes again and again does not fill the log."""
        who, key = channel.peer if index is None else f"device {index}", (index, what, str(error))
        level = logging.DEBUG if key in self.said else logging.WARNING
        log.log(level, "%s is %s: %s", who, what, error)
        self.said |= {key} if len(self.said) < 1000 else set()

    def lose(self, index: int, reason: str = "") -> None:
        """A device has gone; for a reason nobody waits for it in the open round."""
        self.channels.pop(index, None)
        self.lost_s[index] = time.monotonic()
        if index not in self.contributions and (reason or self.turnstile is not None):
            self.orders.pop(index, None)
            self.dropped |= {index: reason} if reason else {}
            if self.turnstile is not None:
                self.turnstile.leave(index)
        self.condition.notify_all()

    # ---- parts

    def tail_of(self, device: int, cut: int) -> Tail:
        """Return a tail for a device: one of its own, or the one that all share."""
        if self.settings.shared_tail and self.shared is not None:
            return self.shared
        settings = self.settings
        optimizer = partial(sgd, lr=settings.lr, momentum=settings.momentum)
        units = copy.deepcopy(self.units)[cut:]
        tail = Tail(units, optimizer, first=cut, seed=settings.seed, device=device)
        if settings.shared_tail:
            self.shared = tail
        return tail

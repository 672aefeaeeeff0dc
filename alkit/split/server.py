"""The server as a state machine over rounds; all of its state is under one lock.

    GATHER --> TRAIN --> AVERAGE --> TRAIN --> AVERAGE ... --> DONE      FAILED, from any of them
    devices    they work the round   the next one              the final weights go out
    come       at it     is over     is open

The run's thread moves from phase to phase (`run`); each device's connection has a `Session`, which
asks for work and hands it in. A device that is lost keeps its place in the open round: it may come
back and go on from the last step that both sides have, or from the round's beginning. When all
others are done and `grace_s` has passed, the round is averaged without it, if a quorum is there; it
may join the next one.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from alkit.engine.caller import CallerState
from alkit.engine.optimizers import Factory
from alkit.split.channel import Channel
from alkit.split.checkpoints import Kept, restore, save
from alkit.split.choosing import Choosing
from alkit.split.expect import Expect
from alkit.split.halves import average, state_of
from alkit.split.member import Member
from alkit.split.round import Assignment, Attendance, Contribution, Round, RoundRecord
from alkit.split.session import Session
from alkit.split.settings import Settings
from alkit.split.stream import round_count, round_steps
from alkit.split.tail_round import TailRound
from alkit.split.tails import Tails
from alkit.split.turns import Turnstile
from alkit.split.waiting import QuorumLost, wait_for_all

__all__ = ["Phase", "QuorumLost", "Server"]


class Phase(Enum):
    """What the server is at."""

    GATHER = "the first round waits for its devices"
    TRAIN = "devices work at the open round"
    AVERAGE = "a round is over, and the next one not open yet"
    DONE = "devices get the final weights"
    FAILED = "devices are told why the run ends"


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
        self.settings, self.name, self.path = settings, name, path
        self.kept = kept or Kept()
        self.evaluate, self.plan, self.report = evaluate, plan, report
        self.choosing, self.profile = choosing, profile if choosing else 0
        self.condition = threading.Condition()
        self.caller = CallerState.here()
        self.phase = Phase.GATHER
        self.failure: BaseException | None = None
        self.state, self.tails = state_of(units), Tails(units, settings, optimizer)
        self.expect = Expect(units, example)
        choices = zip(samples, settings.cuts, settings.micros, strict=True)
        self.members = [Member(at, own, (cut, m)) for at, (own, cut, m) in enumerate(choices)]
        self.rounds = round_count(settings, list(samples))
        self.records: list[RoundRecord] = []
        self.open = Round(0, settings, Attendance())
        self.said: set[Any] = set()  # in the log
        if path is not None and path.exists():
            restore(self, path)

    @property
    def round(self) -> int:
        """Number of the round that is open, or comes next."""
        return len(self.records)

    @property
    def over(self) -> bool:
        """Whether no round comes any more."""
        return self.phase in (Phase.DONE, Phase.FAILED)

    @property
    def channels(self) -> dict[int, Channel]:
        """Connections of the devices that are there."""
        return {own.index: own.channel for own in self.members if own.channel is not None}

    # ---- the run's thread

    def run(self) -> dict[str, Tensor]:
        """Train to the end, and return the network's state.

        Raises:
            QuorumLost: too few devices came, or are left.
        """
        try:
            while self.round < self.rounds:
                with self.condition:
                    self._open()
                    wait_for_all(self)
                    self._enter(Phase.AVERAGE)
                self._close()
        except BaseException as error:
            self.stop(error)
            raise
        if self.path is not None:
            save(self, self.path)
        with self.condition:
            self._enter(Phase.DONE)
        return self.state

    def stop(self, error: BaseException) -> None:
        """End all connections: the run is over for a reason."""
        with self.condition:
            self.failure = self.failure or error
            self._enter(Phase.FAILED)
            if self.open.turnstile is not None:
                self.open.turnstile.stop()
            for channel in self.channels.values():
                channel.close()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase if self.failure is None else Phase.FAILED
        self.condition.notify_all()

    def _open(self) -> None:
        """Say who is to do what in the next round; the first begins for all at once."""
        if self.path is not None:
            save(self, self.path)
        assignments = Attendance()
        for member in self.members:
            own = self._assignment(member)
            if own is not None and len(own.steps):
                assignments[member.index] = own
        gone = [at for at in assignments if self.members[at].dropped and at not in self.channels]
        if len(assignments) - len(gone) >= self.settings.quorum:
            for at in gone:
                del assignments[at]
        self.open = Round(self.round, self.settings, assignments, self._turnstile(assignments))
        if self.phase is Phase.GATHER:  # who is late does not stop the others
            self.condition.wait_for(
                lambda: self.failure is not None or assignments.keys() <= self.channels.keys(),
                timeout=self.settings.grace_s if self.records else self.settings.join_s,
            )
        self._enter(Phase.TRAIN)

    def _assignment(self, member: Member) -> Assignment | None:
        if self.plan is not None:
            return self.plan[self.round].get(member.index)
        cut, micro = member.choice
        steps = round_steps(self.settings, member.samples, micro, self.round)
        return Assignment(cut, micro, steps, fresh=True)

    def _turnstile(self, assignments: Attendance) -> Turnstile | None:
        """Set up the tail that devices take turns at in a drawn order, if there is one."""
        if self.settings.rules.tail != "drawn":
            return None
        assert self.tails.shared is not None  # whoever takes turns shares it
        self.tails.shared.load(self.state)
        self.tails.shared.set_rates(self.settings.factor(self.round))
        steps = {at: own.steps for at, own in assignments.items()}
        return Turnstile(steps, self.settings.devices, self.settings.seed, self.round)

    def _close(self) -> None:
        """Average what the devices have handed in, and record the round."""
        start_s, done = time.perf_counter(), dict(sorted(self.open.contributions.items()))
        state = self._averaged(done)
        end_s = time.perf_counter()
        scores = self.evaluate(state) if self.evaluate is not None else {}
        record = self.open.record(scores, end_s - start_s, end_s)
        if self.choosing is not None:
            for own in (self.members[at] for at in done):
                own.choice = self.choosing.again(own.index, record) or own.choice
        with self.condition:
            self.records.append(record)
            self.state = state
            self.open = Round(self.round, self.settings, Attendance())
        if self.report is not None:
            self.report(record)

    def _averaged(self, done: Mapping[int, Contribution]) -> dict[str, Tensor]:
        """Return the state that the next round begins with."""
        if not done or self.settings.rules.tail == "handed on":
            return self.state  # which was handed on from device to device
        weights = [own.samples for own in done.values()]
        state = average([own.state for own in done.values()], weights)
        return state if self.tails.shared is None else state | self.tails.shared.state()

    # ---- what sessions ask for, on their threads, with the lock

    def join(self, channel: Channel, identity: int | None = None) -> None:
        """Serve one connection to its end; returns, whatever the device does.

        Args:
            identity: number of the device that the transport has made sure of; None if it can't.
        """
        Session(self, channel, identity).run()

    def has_work(self, index: int) -> bool:
        """Whether a device has something to do now."""
        return self.phase is Phase.TRAIN and self.open.awaits(index)

    def begun(self, member: Member) -> TailRound:
        """Begin a device's part of the open round, and return the server's side of it."""
        round_, own = self.open, self.open.assignments[member.index]
        if self.plan is None:
            before = self.records[-1].attendance.get(member.index) if self.records else None
            known = member.optimizers_known(before, self.round, own.cut, self.settings)
            own = own._replace(fresh=not known)
            round_.assignments[member.index] = own
        tail, turns = self.tails.of(member, own.cut), round_.turns(member.index)
        return TailRound(member, round_.number, own, tail, self.settings, self.expect, turns)

    def lose(self, member: Member, reason: str) -> None:
        """A device has gone; for a reason nobody waits for it in the open round."""
        member.channel, member.lost_s = None, time.monotonic()
        undone = member.index not in self.open.contributions
        if undone and (reason or self.open.turnstile is not None):
            self.open.leave_out([member.index])
            member.dropped = reason or member.dropped
        self.condition.notify_all()

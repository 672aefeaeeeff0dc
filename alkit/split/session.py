"""One connection of a device, on a thread of its own, from the hello to the final weights.

    hello, welcome -> [start -> iterations -> done] a round -> bye

What it does to the server's state it does under the server's lock, and whatever the device does,
it leaves a state that the others can go on from.
"""

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import Tensor

from alkit.engine.local import operator_threads
from alkit.split.channel import Channel, ChannelLost, beating
from alkit.split.checkpoints import save
from alkit.split.greeting import Greeting, Unwanted, refuse, welcome
from alkit.split.member import Member
from alkit.split.round import Contribution
from alkit.split.tail_round import TailRound
from alkit.split.wire import Message, WireError, as_weights

if TYPE_CHECKING:
    from alkit.split.server import Server

__all__ = ["GOODBYE_S", "Session"]

log = logging.getLogger(__name__)
GOODBYE_S = 60.0  # for the final weights to reach a device


class Session:
    """One connection.

    Args:
        identity: number of the device that the transport has made sure of; None if it can't.
    """

    def __init__(self, server: "Server", channel: Channel, identity: int | None) -> None:
        self.server, self.channel, self.identity = server, channel, identity

    def run(self) -> None:
        """Serve the device to its end; returns, whatever it does."""
        member = None
        try:
            member = self._admit()
            self._serve(member)
        except Unwanted as error:
            self._warn("refused", self.identity, error)
            refuse(self.channel, str(error))
        except WireError as error:
            index = self.identity if member is None else member.index
            self._warn("dropped", index, error)
            self._drop(index, str(error))
            refuse(self.channel, str(error))
        except ChannelLost as error:
            log.info("lost %s: %s", self.channel.peer, error)
        except BaseException as error:  # a fault of ours: the run's thread raises it
            self.server.stop(error)
        finally:
            self._gone(member)
            self.channel.close()

    def _serve(self, member: Member) -> None:
        server, settings = self.server, self.server.settings
        with (
            operator_threads(settings.threads),
            server.caller.training(),
            beating(self.channel, settings.heartbeat_s),
        ):
            while (given := self._next_work(member)) is not None:
                work, state = given
                if state is not None:
                    work.begin(state, server.tails.handed)
                self._say_start(work, state)
                self._hand_in(member, work, work.serve(self.channel))
            self._goodbye()

    def _say_start(self, work: TailRound, state: dict[str, Tensor] | None) -> None:
        """Tell the device what to do; with the weights, unless it goes on where it was."""
        own = work.assignment
        values = {
            "cut": own.cut,
            "micro": own.micro,
            "fresh": own.fresh,
            "resume": state is None,
            "first": own.steps.start,
            "last": own.steps.stop,
            "step": work.steps_done,
        }
        head = as_weights(state or {}, own.cut)
        self.channel.send(Message("start", round=work.number, values=values, tensors=head))

    def _goodbye(self) -> None:
        """Send the final weights, and wait until the device has all of them."""
        server, channel = self.server, self.channel
        if server.failure is not None:
            return refuse(channel, f"the server ends: {server.failure}")
        channel.send(Message("bye", round=server.round, tensors=as_weights(server.state)))
        end_s = time.monotonic() + 10 * GOODBYE_S  # heartbeats alone keep nobody here
        with suppress(ChannelLost):
            while time.monotonic() < end_s:  # the device ends the stream once it has all of it
                channel.receive(GOODBYE_S)

    def _warn(self, what: str, index: int | None, error: WireError) -> None:
        """Write a line once: who comes again and again does not fill the log."""
        said, key = self.server.said, (index, what, str(error))
        who = self.channel.peer if index is None else f"device {index}"
        log.log(logging.DEBUG if key in said else logging.WARNING, "%s is %s: %s", who, what, error)
        self.server.said = said | {key} if len(said) < 1000 else set()

    # ---- under the server's lock

    def _admit(self) -> Member:
        """Greet the device and let it in; an older connection of it ends before.

        Raises:
            Unwanted, WireError, ChannelLost: see `welcome`.
        """
        server, settings = self.server, self.server.settings
        job = {"settings": settings.plain()}
        options = server.name, settings.devices, self.identity, server.profile
        greeting = welcome(self.channel, server.expect, job, *options)
        member = server.members[greeting.device]
        with server.condition:
            if greeting.machine is not None:
                self._choose(member, greeting)
            if (before := member.channel) is not None:
                before.close()  # its thread may be at work on the tail: wait until it has left
                server.condition.wait_for(lambda: member.channel is not before)
            member.met(greeting, self.channel)
            server.condition.notify_all()
        return member

    def _choose(self, member: Member, greeting: Greeting) -> None:
        """Set what a device does that has come for the first time in this run."""
        server, index = self.server, member.index
        told: Any = index, greeting.machine, greeting.link
        assert server.choosing is not None  # else no device is asked for a profile
        if member.planned:
            server.choosing.meet(*told)
            return
        try:
            member.choice = cut, micro = server.choosing.first(*told)
        except ValueError as error:  # what it says of itself leaves no choice
            raise WireError(f"device {index} can't be planned for: {error}") from error
        member.planned = True
        if server.path is not None:
            save(server, server.path)
        if (own := server.open.assignments.get(index)) is not None:
            server.open.assignments[index] = own._replace(cut=cut, micro=micro)

    def _next_work(self, member: Member) -> tuple[TailRound, dict[str, Tensor] | None] | None:
        """Wait for the next round: with the network's state, or none to go on; None at the end."""
        server = self.server
        with server.condition:
            server.condition.wait_for(
                lambda: server.over or not self._holds(member) or server.has_work(member.index)
            )
            self._check_holds(member)
            if server.over:
                return None
            server.open.started_s = server.open.started_s or time.perf_counter()
            if member.work is not None and member.resumes(server.open.number):
                return member.work, None
            member.work = server.begun(member)
            return member.work, server.state

    def _hand_in(self, member: Member, work: TailRound, made: Contribution) -> None:
        """Put what the device and its tail have made of the open round to the others'."""
        server = self.server
        with server.condition:
            self._check_holds(member)
            server.open.contributions[member.index] = made
            member.known.add((work.number + 1, work.assignment.cut))
            if server.settings.rules.tail == "handed on":
                server.state = made.state
                server.tails.handed = work.tail.optimizer_state()
            server.condition.notify_all()

    def _holds(self, member: Member) -> bool:
        """Whether this is the device's connection still."""
        return member.channel is self.channel

    def _check_holds(self, member: Member) -> None:
        if not self._holds(member):
            raise ChannelLost(f"device {member.index} has connected anew")

    def _drop(self, index: int | None, reason: str) -> None:
        """Leave a device that sends nonsense out of the open round."""
        with self.server.condition:
            for member in self.server.members:
                if member.index == index and member.channel in (None, self.channel):
                    self.server.lose(member, reason)

    def _gone(self, member: Member | None) -> None:
        with self.server.condition:
            if member is not None and self._holds(member):
                self.server.lose(member, member.dropped)
            self.server.condition.notify_all()

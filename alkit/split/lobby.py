"""Who is there: devices come, are greeted, and stay until their links end.

stranger ──► hello, probes ──► refused, in a sentence
                          └──► let in; an older link of the same device ends
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from alkit.split.greeting import Greeting, Unwanted, greet
from alkit.split.link import Link, Lost, Refused
from alkit.split.member import Member
from alkit.split.settings import Settings
from alkit.split.wire import Message, WireError

log = logging.getLogger(__name__)

GOODBYE_S = 60.0  # for the final weights to reach a device
TWIN_S = 10.0  # for the loss of a device's older connection to be known


class Lobby:
    """The devices of one run, connected or not.

    Args:
        name: of the job that they must be of.
        profile: repetitions of their profiles; 0 for none.
        choose: called with a device that has been profiled, before it is let in.
        fault: called with an error of ours, which nobody here can raise.

    Attributes:
        changed: whoever waits for somebody to come or to go waits for this.
        last: what all are told at the end.
    """

    def __init__(
        self,
        name: str,
        settings: Settings,
        members: Sequence[Member],
        *,
        profile: int,
        choose: Callable[[Member, Greeting], Awaitable[None]],
        fault: Callable[[Exception], None],
    ) -> None:
        self.name, self.settings, self.members = name, settings, members
        self.profile, self.choose, self.fault = profile, choose, fault
        self.changed = asyncio.Condition()
        self.last: Message | None = None

    @property
    def links(self) -> dict[int, Link]:
        """Connections of the devices that are there."""
        return {own.index: own.link for own in self.members if own.link is not None}

    async def join(self, link: Link) -> None:
        """Greet whoever has come, and stay until its link has ended."""
        try:
            member = await self._let_in(link)
        except WireError as error:
            log.warning("%s is refused: %s", link.peer, error)
            return await self._refuse(link, error)
        except (Lost, Refused) as error:
            log.info("lost %s: %s", link.peer, error)
            return link.close()
        except Exception as error:  # a fault of ours: the run raises it
            self.fault(error)
            return link.close()
        if self.last is not None:  # it was away at the end
            with suppress(Lost):
                await link.send(self.last)
        await link.ended.wait()
        await self.lost(member, link)

    async def _let_in(self, link: Link) -> Member:
        own = self.settings
        greeting = await greet(link, profile=self.profile, name=self.name, devices=own.devices)
        member = self.members[greeting.device]
        before, told = member.link, member.greeting
        if before is not None and told is not None and told.token != greeting.token:
            with suppress(TimeoutError):  # it may not be known yet that the old one has gone
                async with asyncio.timeout(TWIN_S):
                    await before.ended.wait()
            if not before.ended.is_set():
                raise Unwanted(f"device {member.index} is here already, at {before.peer}")
        if greeting.machine is not None:
            await self.choose(member, greeting)
        if before is not None:
            before.close()
        await link.send(Message("welcome", values={"settings": own.plain()}))
        member.link, member.greeting, member.known = link, greeting, greeting.saved
        await self._wake()
        return member

    async def say_goodbye(self, last: Message) -> None:
        """Send everybody the last word; a device ends the stream once it has all of it."""
        self.last, links = last, list(self.links.values())
        for link in links:
            with suppress(Lost):
                await link.send(last)
        if links:
            ends = [asyncio.create_task(link.ended.wait()) for link in links]
            await asyncio.wait(ends, timeout=GOODBYE_S if last.kind == "bye" else 1.0)
            for end, link in zip(ends, links, strict=True):
                end.cancel()
                link.close()

    async def lost(self, member: Member, link: Link) -> None:
        """Note that a device's link has ended, unless it has another one by now."""
        if member.link is link:
            link.close()
            member.link = None
            await self._wake()

    async def _refuse(self, link: Link, error: Exception) -> None:
        """Say why a link ends, and end it."""
        with suppress(Lost):
            await link.send(Message("error", values={"text": str(error)}))
            await link.finish()
        link.close()

    async def _wake(self) -> None:
        """Have whoever waits for a change look again."""
        async with self.changed:
            self.changed.notify_all()

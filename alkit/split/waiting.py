"""How the run's thread waits for the open round, with the server's lock."""

import logging
import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alkit.split.server import Server

__all__ = ["QuorumLost", "wait_for_all"]

log = logging.getLogger(__name__)


class QuorumLost(ConnectionError):
    """Too few devices are left."""


def wait_for_all(server: "Server") -> None:
    """Wait until everybody is done, or the rest has been waited for long enough.

    Raises:
        QuorumLost: see `Settings.join_s`.
    """
    round_s = server.settings.round_s or math.inf
    end_s = time.monotonic() + round_s
    while server.failure is None:
        if not server.open.missing and server.open.enough:
            return
        if time.monotonic() >= end_s and _stop_the_slow(server):
            end_s = time.monotonic() + round_s  # of the next one's turn
        now, left = time.monotonic(), _deadline(server)
        if now >= left:
            return _go_on_without(server)
        wake_s = min((at for at in (left, end_s) if at > now), default=math.inf)
        server.condition.wait(None if wake_s == math.inf else max(0.05, wake_s - now))
    raise server.failure


def _deadline(server: "Server") -> float:
    """Return when waiting ends: never while somebody is still at work."""
    if any(at in server.channels for at in server.open.missing):
        return math.inf
    return server.open.deadline({own.index: own.lost_s for own in server.members})


def _stop_the_slow(server: "Server") -> bool:
    """End the connections of devices that are too slow; they may join the next round."""
    slow = [at for at in server.open.slow() if not server.members[at].dropped]
    why = f"it was not done after {server.settings.round_s:g} s (round_s)"
    for at in slow:
        log.warning("device %d is left out of round %d: %s", at, server.round, why)
        server.members[at].dropped = why
        if at in server.channels:
            server.channels[at].close()  # its thread leaves the tail, and then says so
        else:
            server.lose(server.members[at], why)
    return bool(slow)


def _go_on_without(server: "Server") -> None:
    """Average without those who are missing, if there are enough others."""
    missing, done = server.open.missing, len(server.open.contributions)
    if not server.open.enough:
        why = "".join(f"; device {m.index}: {m.dropped}" for m in server.members if m.dropped)
        raise QuorumLost(
            f"round {server.round}: {done} devices are done and the others are gone; the quorum"
            f" is {server.settings.quorum}{why}"
        )
    log.warning("round %d is averaged without device %s", server.round, missing)
    server.open.leave_out(missing)

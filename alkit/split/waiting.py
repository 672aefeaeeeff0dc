"""Whom the server waits for in a round, and how long; its run's thread is here, with its lock."""

import logging
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alkit.split.server import Server

__all__ = ["QuorumLost", "gather", "wait_for_all"]

log = logging.getLogger(__name__)


class QuorumLost(ConnectionError):
    """Too few devices are left."""


def gather(server: "Server") -> None:
    """Let the first round begin for all at once; who is late does not stop the others."""
    wait_s = server.settings.grace_s if server.records else server.settings.join_s
    server.condition.wait_for(
        lambda: server.failure is not None or all(at in server.channels for at in server.orders),
        timeout=wait_s,
    )
    server.gate = True
    server.condition.notify_all()


def wait_for_all(server: "Server") -> None:
    """Wait until everybody is done, or the rest has been waited for long enough.

    Raises:
        QuorumLost: see `Settings.join_s`.
    """
    end_s = time.monotonic() + (server.settings.round_s or math.inf)
    while True:
        if server.failure is not None:
            raise server.failure
        missing = [at for at in server.orders if at not in server.contributions]
        enough = len(server.contributions) >= server.needed
        if not missing and enough:
            return
        if time.monotonic() >= end_s and (slow := _slow(server, missing, enough)):
            _stop(server, slow)
            end_s = time.monotonic() + server.settings.round_s  # of the next one's turn
        now, left = time.monotonic(), _deadline(server, missing, enough)
        if left is not None and now >= left:
            if enough:
                return _leave_out(server, missing)
            why = "".join(f"; device {at}: {text}" for at, text in server.dropped.items())
            raise QuorumLost(
                f"round {server.round}: {len(server.contributions)} devices are done and the"
                f" others are gone; the quorum is {server.settings.quorum}{why}"
            )
        wake_s = min([at for at in (left, end_s) if at is not None and at > now], default=math.inf)
        server.condition.wait(None if wake_s == math.inf else max(0.05, wake_s - now))


def _deadline(server: "Server", missing: Sequence[int], enough: bool) -> float | None:
    """Return when waiting ends; None while somebody is still at work."""
    if any(at in server.channels for at in missing):
        return None
    if not missing:
        return server.opened_s  # they can't come back into this round
    late = [at for at in missing if at not in server.lost_s]  # never seen
    if late or not enough:
        start = max([server.opened_s, *(server.lost_s.get(at, 0.0) for at in missing)])
        return start + server.settings.join_s
    return max(server.lost_s[at] for at in missing) + server.settings.grace_s


def _slow(server: "Server", missing: Sequence[int], enough: bool) -> list[int]:
    """Return whom a round that takes too long goes on without: nobody until a quorum is there."""
    if server.turnstile is not None:
        found = [server.turnstile.now]
    elif server.settings.shared_tail:
        found = missing[:1]
    else:
        found = missing if enough else []
    return [at for at in found if at is not None and at not in server.dropped]


def _stop(server: "Server", slow: Sequence[int]) -> None:
    """End the connections of devices that are too slow; they may join the next round."""
    why = f"it was not done after {server.settings.round_s:g} s (round_s)"
    for at in slow:
        log.warning("device %d is left out of round %d: %s", at, server.round, why)
        server.dropped[at] = why
        if at in server.channels:
            server.channels[at].close()  # its thread leaves the tail, and then says so
        else:
            server.lose(at, why)


def _leave_out(server: "Server", missing: Sequence[int]) -> None:
    log.warning("round %d is averaged without device %s", server.round, missing)
    for at in missing:
        del server.orders[at]

"""Whom the server waits for in a round, and how long; its run's thread is here, with its lock."""

import logging
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
    while True:
        if server.failure is not None:
            raise server.failure
        missing = [at for at in server.orders if at not in server.contributions]
        enough = len(server.contributions) >= server.needed
        if not missing and enough:
            return
        now, left = time.monotonic(), _deadline(server, missing, enough)
        if left is not None and now >= left:
            if enough:
                return _leave_out(server, missing)
            why = "".join(f"; device {at}: {text}" for at, text in server.dropped.items())
            raise QuorumLost(
                f"round {server.round}: {len(server.contributions)} devices are done and the"
                f" others are gone; the quorum is {server.settings.quorum}{why}"
            )
        server.condition.wait(None if left is None else max(0.05, left - now))


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


def _leave_out(server: "Server", missing: Sequence[int]) -> None:
    log.warning("round %d is averaged without device %s", server.round, missing)
    for at in missing:
        del server.orders[at]

"""The server's messages as a device takes them: the one that is due, or why the server ends."""

from contextlib import suppress

from alkit.split.channel import Channel, ChannelLost
from alkit.split.wire import KINDS, Message, WireError

__all__ = ["Refused", "receive", "told_why"]


class Refused(ConnectionError):
    """The server does not want this device; trying again would not help."""


def receive(channel: Channel, limit_s: float | None, *kinds: str) -> Message:
    """Return the next message that is no heartbeat; any may take `limit_s`.

    Raises:
        Refused: the server says why it ends.
        WireError: it is of none of these kinds.
        ChannelLost: nothing came.
    """
    while (message := channel.receive(limit_s)).kind == "heartbeat":
        pass
    if message.kind == "error":
        raise Refused(str(message.values["text"]))
    if message.kind not in kinds:
        raise WireError(f"{message.name} came where {' or '.join(kinds)} was due")
    return message


def told_why(channel: Channel) -> None:
    """Raise what the server said before the stream ended, which may still wait to be read.

    Raises:
        Refused: the server does not want this device.
    """
    with suppress(ChannelLost):
        while True:
            receive(channel, 0.0, *KINDS)

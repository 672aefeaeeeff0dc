"""One iteration of split learning as a schedule of four lanes, and the splitting of a batch.

Stage 0 is the head on the device, stage 1 the tail on the server; `send` carries the output of a
forward or backward. Three micro-batches:

    device     F F F . . . B B B U
    uplink       s s s
    server         FB FB FB U
    downlink         s  s  s

One micro-batch is plain split learning: one lane works at a time. In one process a lane is
a thread; between machines a device runs the first two lanes and the server the last two.
"""

from collections.abc import Iterable, Iterator

from alkit.schedule.task import Edge, Schedule, Task, check_positive

LANES = ("device", "uplink", "server", "downlink")
DEVICE, UPLINK, SERVER, DOWNLINK = range(4)
AHEAD = 2  # batches that a device without a head may be ahead of the server


def split(micro: int, *, returns: bool = True) -> Schedule:
    """Return the schedule of iterations of `micro` micro-batches; a head's gradients come back."""
    check_positive(micro=micro)

    def order(lane: int, batches: Iterable[int]) -> Iterator[Task]:
        for batch in batches:
            if lane == SERVER:
                for at in range(micro):
                    yield Task("forward", 1, batch, at)
                    yield Task("backward", 1, batch, at)
            elif lane == DEVICE:
                yield from (Task("forward", 0, batch, at) for at in range(micro))
                if returns:
                    yield from (Task("backward", 0, batch, at) for at in range(micro))
            elif lane == UPLINK or returns:
                yield from (Task("send", lane // 2, batch, at) for at in range(micro))
            if lane in (DEVICE, SERVER):
                yield Task("update", lane // 2, batch)

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, at = task
        sent = Edge("data", Task("send", 1 - stage, batch, at))
        if kind == "update":
            last = Edge("order", Task("backward", stage, batch, micro - 1))
            return (last,) if stage or returns else ()
        if kind == "send":
            made = Edge("data", Task("backward" if stage else "forward", stage, batch, at))
            room = Edge("room", Task("forward", 1, batch - AHEAD, at))
            return (made,) if returns else (made, room)
        if kind == "backward":
            return (Edge("order", Task("forward", 1, batch, at)),) if stage else (sent,)
        room = Edge("room", Task("send", 0, batch - AHEAD, at))
        before = Edge("weights", Task("update", 0, batch - 1))
        return (sent,) if stage else (before,) if returns else (before, room)

    return Schedule("split" if micro == 1 else "pipelearn", 2, 4, order, edges)


def split_sizes(samples: int, micro: int, least: int = 1) -> list[int]:
    """Cut a batch into at most `micro` micro-batches of near-equal sizes, of `least` and more.

    Example:
        >>> split_sizes(10, 4)
        [3, 3, 2, 2]
    """
    check_positive(samples=samples, micro=micro)
    count = max(1, min(micro, samples // least))
    small, larger = divmod(samples, count)
    return [small + 1] * larger + [small] * (count - larger)

"""Which of the tasks that may start is the most urgent: that of the lane with most work left.

A lane's work is counted in seconds, up to the newest batch that is known:

    work left = seconds of a whole batch * batches after this one + seconds from this task on

A layer that fell behind, or that has most to do, is helped first, so that none holds up the end.
Counting only known batches does no worse than counting all that will come, and needs no length.
"""

from alkit.schedule.task import Place, Schedule, Task

__all__ = ["FEED_AHEAD", "WorkLeft"]

FEED_AHEAD = 2  # batches that the loader may be ahead of the first stage: they are known
SMOOTHING = 0.3  # weight of a newer duration
UNKNOWN_S = 1.0  # of a task that has not run yet; more than most take, so lanes are tried early


class WorkLeft:
    """The work that lanes have left, from durations that are noted while a schedule runs."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.seconds: dict[Place, float] = {}
        self.places = [[t.place for t in schedule.one_batch(i)] for i in range(schedule.lanes)]
        self.from_here: dict[Place, float] = {}  # of this task and those after it in its lane
        for lane in range(schedule.lanes):
            self._add_up(lane)

    def note(self, lane: int, task: Task, seconds: float) -> None:
        """Take account of how long a task took."""
        before = self.seconds.get(task.place, seconds)
        self.seconds[task.place] = before + SMOOTHING * (seconds - before)
        self._add_up(lane)

    def of(self, lane: int, task: Task, batches: int) -> float:
        """Return the seconds of work of a lane whose next task is `task`, up to `batches`."""
        whole = self.from_here[self.places[lane][0]]
        return whole * (batches - 1 - task.batch) + self.from_here[task.place]

    def _add_up(self, lane: int) -> None:
        total = 0.0
        for place in reversed(self.places[lane]):
            total += self.seconds.get(place, UNKNOWN_S)
            self.from_here[place] = total

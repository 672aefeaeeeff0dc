"""Which of the tasks that may start is the most urgent.

1   begun tasks         backwards and updates before forwards: no more layers hold activations
                        than there are workers
2   most work left      batches that are known and not finished * seconds of a batch
"""

from alkit.schedule.task import Place, Schedule, Task

FEED_AHEAD = 2  # batches that the loader may be ahead of the first stage: they are known
SMOOTHING = 0.3  # weight of a newer duration
UNKNOWN_S = 1.0  # of a task that has not run yet; more than most take, so lanes are tried early


class WorkLeft:
    """The work that lanes have left, from durations that are noted while a schedule runs."""

    def __init__(self, schedule: Schedule) -> None:
        self.seconds: dict[Place, float] = dict.fromkeys(schedule.places, 0.0)
        self.lane_s = [UNKNOWN_S * len(schedule.one_batch(i)) for i in range(schedule.lanes)]

    def note(self, lane: int, task: Task, seconds: float) -> None:
        """Take account of how long a task took."""
        before = self.seconds[task.place]
        after = before + SMOOTHING * (seconds - before) if before else seconds
        self.seconds[task.place] = after
        self.lane_s[lane] += after - (before or UNKNOWN_S)

    def urgency(self, lane: int, task: Task, batches: int) -> tuple[bool, float]:
        """Return how urgent the next task of a lane is, if `batches` are known: more is sooner."""
        return task.kind != "forward", self.lane_s[lane] * (batches - task.batch)

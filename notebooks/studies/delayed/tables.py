"""What happens when, in words: the tables of the methods.

    F4@1      forward of batch 4 with the weights after 1 update
    B1@0→2    backward of batch 1 evaluated with version 0; its update makes version 2
    R1@1→2    the same with the forward run again, with version 1

Batches, workers and rows are counted from 0, as in charts; the publications count from 1.
"""

from collections.abc import Iterator

import pandas as pd

from alkit.delayed.methods import METHODS
from alkit.delayed.schedules import schedule_for
from alkit.schedule.task import Task

IDLE = "."


def cells(method: str, stages: int, batches: int) -> dict[Task, str]:
    """Return the words of every forward and backward of a method without micro-batches."""
    schedule, chosen = schedule_for(method, stages), METHODS[method]
    found: dict[Task, str] = {}
    for worker in range(stages):
        updates, used = 0, {}
        for task in schedule.order(worker, range(batches)):
            if task.kind == "forward":
                asked = chosen.version(task.batch, stages)
                used[task.batch] = updates if asked is None else asked
                found[task] = f"F{task.batch}@{used[task.batch]}"
            elif task.kind == "backward":
                again = chosen.backward == "replay" and worker < stages - 1
                version = updates if again else used.pop(task.batch)
                letter = "R" if again else "B"
                found[task] = f"{letter}{task.batch}@{version}→{task.batch + 1}"
            else:
                updates += 1
    return found


def by_iteration(method: str, stages: int, batches: int) -> pd.DataFrame:
    """Return a row an iteration: the forwards of a batch, then each module's backward."""
    rows: dict[int, list[str]] = {}
    for task, words in cells(method, stages, batches).items():
        late = stages - 1 - task.stage if task.kind == "backward" else 0
        row = rows.setdefault(task.batch + late, [""] * stages)
        row[task.stage] = f"{row[task.stage]} {words}".strip()
    return _frame(rows, "t")


def staleness(method: str, stages: int, batches: int = 12) -> pd.DataFrame:
    """Return, for each module once the pipeline is full, how many updates its weights lack.

    Columns: forward and backward (updates missed), and whether both use the same weights.
    """
    words, rows = cells(method, stages, batches), []
    for stage in range(stages):
        batch = batches - 1
        forward = words[Task("forward", stage, batch)].split("@")[1]
        backward = words[Task("backward", stage, batch)].split("@")[1].split("→")[0]
        rows.append((stage, batch - int(forward), batch - int(backward), forward == backward))
    return pd.DataFrame(rows, columns=["module", "forward", "backward", "same weights"])


def _frame(rows: dict[int, list[str]], name: str) -> pd.DataFrame:
    def filled() -> Iterator[list[str]]:
        for number in range(max(rows) + 1):
            yield [words or IDLE for words in rows.get(number, [""] * len(rows[0]))]

    made = pd.DataFrame(list(filled()))
    made.columns = [f"worker {k}" for k in range(made.shape[1])]
    return made.rename_axis(name)

"""Judge the order of a pipeline in a file, torch's or alkit's, with or without sends.

A send and its receive happen together, as NCCL's do, so these two ranks wait for ever:

    rank 0   0F0  0SEND_F0  0RECV_B0 ...        rank 1   1RECV_F1 ...
"""

import argparse
import csv
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from alkit.schedule.clock import simulate
from alkit.schedule.task import ScheduleError
from alkit.schedule.torch_orders import read_csv
from alkit.schedule.validate import validate

ACTION = re.compile(r"(\d+)(SEND_F|RECV_F|SEND_B|RECV_B|[FBIW])(\d+)")
COSTS = {"forward": 1.0, "backward": 2.0, "backward_input": 1.0, "backward_weight": 1.0}
Action = tuple[int, str, int]  # stage, a letter or a transfer, micro-batch


def add(commands: Any) -> None:
    """Add the word `judge` to the command."""
    judge = commands.add_parser("judge", help="check the order of a pipeline, in torch's CSV")
    judge.add_argument("file", type=Path, help="a row a rank, a cell an action: 0F0, 1SEND_B2")
    for name in ("stages", "micro"):
        judge.add_argument(f"--{name}", type=int, help=f"the number of {name} that there should be")
    judge.set_defaults(command=_judge)


def _judge(options: argparse.Namespace) -> int:
    try:
        print(order(options.file, stages=options.stages, micro=options.micro))
    except ScheduleError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def order(file: Path, *, stages: int | None = None, micro: int | None = None) -> str:
    """Return how well an order can be run, in a sentence.

    Raises:
        ScheduleError: it can't, or lacks a task; names rank, position and task.
    """
    rows = csv.reader(file.read_text("utf-8-sig", "replace").splitlines())
    cells = ([*ACTION.findall(" ".join(row))] for row in rows)
    ranks = [[(int(s), kind, int(m)) for s, kind, m in row] for row in cells if row]
    _check_turns(ranks)
    schedule = read_csv(file)
    found = schedule.stages, 1 + max(m for _, _, m in schedule.places)
    if (stages or found[0], micro or found[1]) != found:
        raise ScheduleError("{} stages and {} micro-batches are in the file".format(*found))
    idle = simulate(schedule, lambda task: COSTS.get(task.kind, 0.0), 1).bubble
    held = dict.fromkeys(range(schedule.stages), [0])
    for stage, kind, _ in (action for rank in ranks for action in rank):
        held[stage] = [*held[stage], held[stage][-1] + (kind == "F") - (kind in "BW")]
    most = ", ".join(str(max(own)) for own in held.values())
    return (
        f"it can be run: {found[0]} stages on {schedule.workers} ranks, idle for {idle:.0%} of a"
        " batch if a backward takes two forwards; forwards miss"
        f" {max(validate(schedule).staleness)} updates; stages hold up to {most} of {found[1]}"
        " micro-batches"
    )


def _check_turns(ranks: Sequence[Sequence[Action]]) -> None:
    """Refuse an action that is there twice, and ranks that wait for each other."""
    places: dict[Action, str] = {}
    graph: dict[Action, set[Action]] = defaultdict(set)
    for at, rank in enumerate(ranks):
        for position, action in enumerate(rank):
            where = "rank {}, position {} ({}{}{})".format(at, position, *action)
            if action in places:
                raise ScheduleError(f"{where} is there twice: {places[action]}, too")
            places[action] = where
            graph[_sent(action)] |= {_sent(rank[position - 1])} if position else set()
    for action in places:
        graph[_sent(action)] |= {_sent(own) for own in _needs(*action) if own in places}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        turns = [places.get(each, f"{each}, which nobody runs") for each in error.args[1][::-1]]
        raise ScheduleError(f"a deadlock: {', which waits for '.join(turns)}") from error


def _needs(stage: int, kind: str, micro: int) -> list[Action]:
    """Return the actions that one waits for, as far as they are there."""
    above = [(stage + 1, "B", micro), (stage + 1, "I", micro), (stage, "RECV_B", micro)]
    down = [(stage, "F", micro), *above]
    return {
        "F": [(stage - 1, "F", micro), (stage, "RECV_F", micro)],
        **{"B": down, "I": down, "W": [(stage, "I", micro)], "SEND_F": down[:1]},
        "SEND_B": [(stage, "B", micro), (stage, "I", micro)],
    }.get(kind, [])


def _sent(action: Action) -> Action:
    """Return what an action is one with: of a receive, its send."""
    stage, kind, micro = action
    sender = {"RECV_F": stage - 1, "RECV_B": stage + 1}.get(kind, stage)
    return sender, kind.replace("RECV", "SEND"), micro

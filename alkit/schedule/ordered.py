"""Flushed pipelines from the orders of their workers, which may have several stages each.

Two workers, four stages (F, B = forward, backward; the first digit is the stage, the second the
micro-batch; a worker's stages lie two apart, so a micro-batch passes every worker twice):

    interleaved_1f1b   F00 F01 F20 F21 ... B20 B21 B00 B01 U0 U2
                           F10 F11 F30 B30 F31 B31 B10 B11 U1 U3

    looped_bfs         F00 F01 F20 F21 ... B21 B20 B01 B00 U0 U2
                           F10 F11 F30 F31 B31 B30 B11 B10 U1 U3

Their bubble is 1F1B's over the stages of a worker (Narayanan et al. 2021; Lamy-Poirier 2023). On a
V the first worker has the first stage and the last one (i, w = half backwards, for the input and
for the weights; three and four micro-batches):

    zbv          F00F01F02F30i30w30F31i31w31i00w00F32i32w32i01w01i02w02
                    F10F20F11F21i20w20F12i10w10F22i21w21i11i22i12w11w22w12

    dualpipev    F00F01F02F30i30w30F31F03B31B31F32B00B00B32B32F33   B01B01B33B33i02w02i03w03
                    F10F20F11F21F12B20B20F22B10B10F13B21B21F23B11B11B22B22B12B12i23i13w23w13
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from alkit.schedule.task import Edge, Place, Schedule, ScheduleError, Task

HALVES = ("backward_input", "backward_weight")
BACKWARDS = ("backward", "backward_input")  # what hands a gradient on
KINDS = ("forward", "backward", *HALVES)
LETTERS = dict(zip("FBIW", KINDS, strict=True))


def of_orders(name: str, orders: Sequence[Sequence[Place]]) -> Schedule:
    """Return the schedule that runs these orders batch after batch, and an update a stage.

    Args:
        orders: of each worker, (kind, stage, micro-batch): "forward", "backward", or its halves
            "backward_input" and "backward_weight".
    Raises:
        ScheduleError: a stage on two workers, a task twice, or one that is missing; names it.
    """
    owner, micro = _checked(name, orders)
    stages = len(owner)
    there = {place for order in orders for place in order}

    def order(worker: int, batches: Iterable[int]) -> Iterator[Task]:
        own = [stage for stage in range(stages) if owner[stage] == worker]
        for batch in batches:
            yield from (Task(kind, stage, batch, m) for kind, stage, m in orders[worker])
            yield from (Task("update", stage, batch) for stage in own)

    def last(stage: int, m: int) -> str:
        return "backward" if ("backward", stage, m) in there else "backward_weight"

    def edges(task: Task) -> tuple[Edge, ...]:
        kind, stage, batch, m = task
        if kind == "update":
            return tuple(
                Edge("order", Task(last(stage, each), stage, batch, each)) for each in range(micro)
            )
        if kind == "backward_weight":
            return (Edge("order", Task("backward_input", stage, batch, m)),)
        if kind == "forward":
            weights = Edge("weights", Task("update", stage, batch - 1))
            below = [Edge("data", Task(kind, stage - 1, batch, m))] if stage else []
            return (weights, *below)
        found = [Edge("order", Task("forward", stage, batch, m))]
        above = [(each, stage + 1) for each in BACKWARDS]
        for each, at in above:
            if stage < stages - 1 and (each, at, m) in there:
                found.append(Edge("data", Task(each, at, batch, m)))
        return tuple(found)

    return Schedule(name, stages, len(orders), order, edges)


def interleaved_1f1b(stages: int, workers: int, micro: int) -> Schedule:
    """1F1B whose workers have several stages each, stage s on worker s mod `workers`.

    A worker takes micro-batches in rounds of as many as there are workers, through its first stage,
    then through its second; torch's `ScheduleInterleaved1F1B`.

    Raises:
        ScheduleError: stages that workers can't share alike, or micro-batches that don't make whole
            rounds.
    """
    chunks = _chunks(stages, workers, micro)
    rounds = max(1, micro // workers)
    if micro % rounds:
        raise ScheduleError(
            f"micro is {micro} and there are {workers} workers: give a multiple, for micro-batches"
            " go round in turns"
        )
    turn, total = micro // rounds, micro * chunks

    def place(kind: str, worker: int, number: int) -> Place:
        chunk = number // turn % chunks
        chunk = chunk if kind == "forward" else chunks - 1 - chunk
        m = number // (turn * chunks) * turn + number % turn
        return kind, chunk * workers + worker, m

    def order(worker: int) -> Iterator[Place]:
        ahead = min((chunks - 1) * turn + 2 * (workers - 1 - worker), total)
        yield from (place("forward", worker, number) for number in range(ahead))
        for number in range(total):
            if ahead + number < total:
                yield place("forward", worker, ahead + number)
            yield place("backward", worker, number)

    return of_orders("interleaved_1f1b", [list(order(worker)) for worker in range(workers)])


def looped_bfs(stages: int, workers: int, micro: int) -> Schedule:
    """Stage by stage, all micro-batches through each; then back; torch's `ScheduleLoopedBFS`.

    Raises:
        ScheduleError: stages that workers can't share alike.
    """
    _chunks(stages, workers, micro)

    def order(worker: int) -> Iterator[Place]:
        own = range(worker, stages, workers)
        yield from (("forward", stage, m) for stage in own for m in range(micro))
        yield from (
            ("backward", stage, m) for stage in reversed(own) for m in reversed(range(micro))
        )

    return of_orders("looped_bfs", [list(order(worker)) for worker in range(workers)])


def zbv(stages: int, workers: int, micro: int) -> Schedule:
    """Zero bubble on a V: worker w has stages w and 2K - 1 - w, so inputs and loss are its first's.

    No worker idles but at both ends if a forward and each half of a backward take as long, and
    there are 2K - 1 micro-batches or more (Qi et al. 2023, section 6; torch's
    `ScheduleZBVZeroBubble`).

    Raises:
        ScheduleError: not two stages a worker.
    """
    _check_v("zbv", stages, workers, micro)

    def actions(worker: int) -> Iterator[str]:
        first = 2 * workers - worker - 1  # forwards of the first stage before any backward
        yield from ["F0"] * (first - worker) + ["F1", "F0"] * worker
        yield from ["F1", "I1", "W1"] * (workers - worker)
        more = max(2 * workers - 1, micro) - first
        yield from ["F0", "I0", "W0", "F1", "I1", "W1"] * more
        yield from ["I0", "W0", "F1", "I1", "W1"] * (workers - worker - 1)
        yield from ["I0", "I1"] * worker + ["I0", "W0"] * (workers - worker)
        yield from ["W1"] * worker + ["W0"] * worker

    return _on_a_v("zbv", workers, micro, actions)


def dualpipev(stages: int, workers: int, micro: int) -> Schedule:
    """Both ways at once on a V: a forward of one stage beside a backward of the other.

    One after the other here; with links between machines each hides the other's transfers
    (DeepSeek-AI 2024, as a V; torch's `ScheduleDualPipeV`). Stages as in `zbv`.

    Raises:
        ScheduleError: not two stages a worker, or fewer micro-batches than stages.
    """
    _check_v("dualpipev", stages, workers, micro)
    if micro < stages:
        raise ScheduleError(f"micro is {micro} and dualpipev has {stages} stages: give as many")

    def actions(worker: int) -> Iterator[str]:
        after = workers - worker - 1  # workers behind this one
        yield from ["F0"] * (2 * after) + ["F0", "F1"] * (worker + 1)
        yield from ["I1", "W", "F1"] * after
        yield from ["F0", "B1", "F1", "B0"] * (micro - stages + worker + 1)
        yield from ["B1", "F1", "B0"] * after
        ends = ["B1", "B0"] * (worker + 1)
        yield from ends[: worker + 1]
        yield from (f"I{own[1]}" for own in ends[worker + 1 :])
        yield from ["W", "I0"] * after
        yield from ["W"] * (worker + 1)

    return _on_a_v("dualpipev", workers, micro, actions)


def _check_v(name: str, stages: int, workers: int, micro: int) -> None:
    if micro < 1 or stages != 2 * workers:
        raise ScheduleError(
            f"{stages} stages, {workers} workers and {micro} micro-batches: {name} has two stages a"
            " worker, and 1 or more of each"
        )


def _on_a_v(
    name: str, workers: int, micro: int, actions: Callable[[int], Iterator[str]]
) -> Schedule:
    """Return the schedule of these actions: letter, and which of a worker's two stages.

    Micro-batches are counted through. "W" alone is the half backward that has waited longest.
    """

    def order(worker: int) -> Iterator[Place]:
        own, seen = (worker, 2 * workers - 1 - worker), Counter[tuple[bool, int]]()
        late: list[tuple[int, int]] = []
        for action in actions(worker):
            letter, which = action[0], action[1:]
            stage = own[int(which)] if which else None
            if letter == "W":
                at = next((at for at in late if stage in (None, at[0])), None)
                if at is not None:
                    late.remove(at)
                    yield "backward_weight", *at
                continue
            assert stage is not None  # only W stands alone
            m = seen[letter == "F", stage]
            seen[letter == "F", stage] += 1
            if m < micro:  # a short batch leaves the rest of the pattern out
                late += [(stage, m)] if letter == "I" else []
                yield LETTERS[letter], stage, m

    return of_orders(name, [list(order(worker)) for worker in range(workers)])


def _chunks(stages: int, workers: int, micro: int) -> int:
    if min(stages, workers, micro) < 1 or stages % workers:
        raise ScheduleError(
            f"{stages} stages, {workers} workers and {micro} micro-batches: give 1 or more of each,"
            " and stages that workers can share alike"
        )
    return stages // workers


def _checked(name: str, orders: Sequence[Sequence[Place]]) -> tuple[list[int], int]:
    """Return the worker of each stage, and how many micro-batches there are."""
    owner: dict[int, int] = {}
    seen: set[Place] = set()
    for worker, order in enumerate(orders):
        for place in order:
            kind, stage, m = place
            if owner.setdefault(stage, worker) != worker:
                raise ScheduleError(
                    f"{name}: stage {stage} is on workers {owner[stage]} and {worker}: give it one"
                )
            if place in seen:
                raise ScheduleError(
                    f"{name}: {kind} of stage {stage}, micro-batch {m}, stands twice"
                )
            seen.add(place)
    if not seen:
        raise ScheduleError(f"{name} has no task")
    stages = range(max(owner) + 1)
    micro = 1 + max((m for _, stage, m in seen if stage == 0), default=-1)
    for stage in stages:
        for m in range(micro):
            made = {kind for kind in KINDS if (kind, stage, m) in seen}
            if made not in ({"forward", "backward"}, {"forward", *HALVES}):
                raise ScheduleError(
                    f"{name}: stage {stage} needs a forward and a backward of micro-batch {m},"
                    " whole or in its two halves"
                )
    if odd := sorted(place for place in seen if place[2] >= micro):
        raise ScheduleError(
            f"{name}: stage {odd[0][1]} has micro-batch {odd[0][2]}, and stage 0 has {micro}: give"
            " all stages the same"
        )
    return [owner[stage] for stage in stages], micro

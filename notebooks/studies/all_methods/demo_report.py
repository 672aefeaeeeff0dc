"""The last screen of `make demo`: one table, what its marks mean, and two sentences of verdict."""

import pandas as pd

from alkit.lab.viz import label
from studies.all_methods.runs import ROWS

FACTORS = (
    "Factors of BP: a step on four simulated devices (links and cutting batches free), memory."
)


def report(table: pd.DataFrame, said: str) -> str:
    """Return the screen: at most 25 lines of 100 columns.

    Args:
        table: a row per method with the columns accuracy, sd, n, against_bp, low, high,
            waits_removed, clock_step_ms, step_s and peak_kib. Without "bp" there are no factors.
        said: what was trained: data, epochs, optimiser.
    """
    if "bp" not in table.index:
        return f"{said}; BP is not among them\n{table.round(2).T.to_string()}"
    changed = [name for name in table.index if ROWS[name].changed]
    marks = dict(zip(changed, "abcdefghij", strict=False))
    head = f"{'':18} {'accuracy, %':13} {'waits removed':26} {'4 devices':>9} {'memory':>7}"
    seeds = int(table.n.max())
    lines = [f"{said}, {seeds} seed{'s' * (seeds > 1)}", head]
    lines += [_line(table, name, marks.get(name, "")) for name in table.index]
    lines += [FACTORS]
    lines += [f"{mark}  {ROWS[name].changed}" for name, mark in marks.items()]
    return "\n".join([*lines, "", accuracies(table), times(table)])


def _line(table: pd.DataFrame, name: str, mark: str) -> str:
    row, bp = table.loc[name], table.loc["bp"]
    accuracy = f"{row.accuracy:.1f}" + (f" ± {row.sd:.1f}" if row.n > 1 else "")
    step, held = row.clock_step_ms / bp.clock_step_ms, row.peak_kib / bp.peak_kib
    times = f"{step:8.2f}x {held:6.2f}x"
    return f"{label(name):18} {accuracy:13} {row.waits_removed:26} {times}  {mark}".rstrip()


def accuracies(table: pd.DataFrame) -> str:
    """Say who differs from BP by more than the interval of its differences over seeds."""
    rest = table.drop("bp")
    if table.n.max() < 2:
        return "Accuracy: one seed decides nothing."
    sides = {"ahead of": rest[rest.low > 0], "behind": rest[rest.high < 0]}
    found = [
        f"{', '.join(map(label, own.index))} {word} BP" for word, own in sides.items() if len(own)
    ]
    told = "; ".join(found) or "no method differs from BP"
    return f"Accuracy: by more than the 95 % interval over {table.n.max():.0f} seeds, {told}."


def times(table: pd.DataFrame) -> str:
    """Say which steps are shorter than BP's on four devices, and on two real cores."""
    over = (table.clock_step_ms / table.clock_step_ms.bp).drop("bp").sort_values()
    less = over[over < 1]
    told = f"Time: {len(less)} of {len(over)} methods have shorter steps than BP on four devices"
    here = (table.step_s / table.step_s.bp).drop("bp").sort_values()
    first = f"the fastest, {label(here.index[0])}, takes {here.iloc[0]:.2f}x"
    return f"{told}.\nTwo real cores: {first} of BP, which has the faster of one and both."

"""How a record, a timeline and the methods show themselves in a notebook."""

from collections.abc import Mapping
from html import escape
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from alkit.figures.viz import colour, gantt, put_title
from alkit.schedule.timeline import Timeline

ROWS = 12  # of a history that a notebook shows


def curves(record: Any) -> Figure:
    """Draw the training loss and what was measured on validation, by epoch or round."""
    history, method = record.history, str(record.made.get("method", ""))
    by = "round" if "round" in history else "epoch"
    held = [name for name in ("val_acc", "val_loss") if name in history]
    figure, axes = plt.subplots(1, 1 + len(held), figsize=(4 * (1 + len(held)), 3), squeeze=False)
    names = {"loss": "training loss", "val_acc": "validation accuracy", "val_loss": "its loss"}
    for ax, name in zip(axes[0], ["loss", *held], strict=True):
        ax.plot(history[by], history[name], marker="o", ms=3, color=colour(method or "bp"))
        if record.best_epoch and name != "loss":
            ax.axvline(record.best_epoch, color="0.6", lw=0.8)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(xlabel=by, ylabel=names[name])
    put_title(figure, f"Loss and validation by {by}")
    return figure


def tasks(timeline: Timeline, batches: int = 8) -> Figure | SubFigure:
    """Draw who did what when, in the first batches."""
    shown = timeline.between(0, batches - 1)
    count = min(batches, len(timeline.batch_ends_s))
    return gantt(shown, f"{count} of {len(timeline.batch_ends_s)} batches").figure


def record_page(record: Any) -> str:
    """Return what came out, and the last epochs of the history."""
    said = {
        "method": record.made.get("method", ""),
        "epochs": f"{len(record.history)}, the best {record.best_epoch}",
        "seconds": f"{record.seconds:.2f}",
        **{f"test {name}": f"{value:.4g}" for name, value in record.metrics.items()},
    }
    head = " · ".join(f"<b>{escape(str(k))}</b> {escape(str(v))}" for k, v in said.items() if v)
    left_out = len(record.history) - ROWS
    more = f"<p>{left_out} earlier epochs are in record.history</p>" if left_out > 0 else ""
    return f"<p>{head}</p>{more}{_table(record.history.tail(ROWS))}"


def timeline_page(timeline: Timeline) -> str:
    """Return how busy every worker was."""
    rows = {
        name: {
            "tasks": sum(i.resource == name for i in timeline.intervals),
            "busy, s": timeline.busy_s(name),
            "idle share": timeline.idle_share(name),
        }
        for name in timeline.resources
    }
    head = f"{timeline.span_s:.4g} s, {len(timeline.batch_ends_s)} batches"
    return f"<p>{head}</p>{_table(pd.DataFrame(rows).T)}"


def methods_page(methods: Mapping[str, Any]) -> str:
    """Return a row a method: family, what it waits for, what it costs, executors, settings."""
    rows = {
        name: {
            "family": each.family,
            "waits for": ", ".join(each.waits_for),
            "costs": each.costs,
            "executors": ", ".join(each.executors) or "its own",
            "settings": each.settings,
        }
        for name, each in methods.items()
    }
    return _table(pd.DataFrame(rows).T)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(float_format=lambda value: f"{value:.4g}", border=0)

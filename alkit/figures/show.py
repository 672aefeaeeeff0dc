"""How a record, a timeline and the methods show themselves in a notebook."""

from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import Any

import pandas as pd

from alkit.schedule.timeline import Timeline

ROWS = 12  # of a history that a notebook shows


def show_pages(formatter: Any) -> None:
    """Let IPython's formatter of HTML show records and timelines as pages."""
    formatter.for_type_by_name("alkit.engine.record", "Record", record_page)
    formatter.for_type_by_name("alkit.methods", "Methods", methods_page)
    formatter.for_type_by_name("alkit.schedule.timeline", "Timeline", timeline_page)


def record_page(record: Any) -> str:
    """Return what came out, and the last epochs of the history."""
    said = {
        "method": record.made.get("method", ""),
        "epochs": f"{len(record.history)}, the best {record.best_epoch}",
        "seconds": f"{record.seconds:.2f}",
        **{f"test {name}": f"{value:.4g}" for name, value in record.metrics.items()},
    }
    head = " · ".join(f"<b>{escape(str(k))}</b> {escape(str(v))}" for k, v in said.items() if v)
    left = len(record.history) - ROWS
    more = f"<p>{left} earlier epochs are in record.history</p>" if left > 0 else ""
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
    head = f"<p>{timeline.span_s:.4g} s, {len(timeline.batch_ends_s)} batches</p>"
    return head + _table(pd.DataFrame(rows).T)


def methods_page(methods: Mapping[str, Any]) -> str:
    """Return a row a method: family, what it waits for, what it costs, settings."""
    rows = {
        name: {
            "family": each.family,
            "waits for": ", ".join(each.waits_for),
            "costs": each.costs,
            "settings": ", ".join(own.name for own in fields(each.settings)),
        }
        for name, each in methods.items()
    }
    return _table(pd.DataFrame(rows).T)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(float_format=lambda value: f"{value:.4g}", border=0)

"""The first lines of every notebook: seeds, threads, theme, versions, and how objects show."""

import logging
import os
import platform
from collections.abc import Mapping
from dataclasses import fields
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.core.getipython import get_ipython

from alkit import __version__
from alkit.lab import viz
from alkit.lab.parameters import preset_values
from alkit.lab.results import busy
from alkit.schedule.timeline import Timeline

ROWS = 12  # of a history that a notebook shows


def take_preset(names: dict[str, Any], notebook: str) -> None:
    """Replace a notebook's parameters by those of the preset that its first cell names.

    In JupyterLab write `preset = "teach"` there, and run all cells. A run in batch has its values
    already, and keeps them.

    Args:
        names: `globals()`; it must hold `preset`, and is changed.
        notebook: its name, without the ending.
    """
    by_papermill = any(cell.startswith("# Parameters") for cell in names.get("In", ()))
    if by_papermill or names["preset"] == "smoke":
        return
    values = preset_values(notebook, names["preset"])
    names.update(values)
    print(f"preset {names['preset']}: {', '.join(f'{k} {v}' for k, v in values.items())}")


def setup(seed: int, threads: int = 1) -> None:
    """Seed torch's global generator, set operator threads and theme, and print one version line.

    The line says how many cores are busy already: times taken on a busy machine say little. Records
    and timelines that end a cell are shown as pages from here on.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    viz.set_theme()
    shell: Any = get_ipython()
    if shell is not None:
        show_pages(shell.display_formatter.formatters["text/html"])
    # on a machine without a GPU torch's compiler warns that there is none
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    print(
        f"alkit {__version__} · Python {platform.python_version()} · torch {torch.__version__}"
        f" · numpy {np.__version__} · {threads} operator thread{'s' * (threads > 1)}"
        f" · {busy():.0%} of {os.cpu_count() or 1} cores busy"
    )


def show_pages(formatter: Any) -> None:
    """Let IPython's formatter of HTML show records, timelines and methods as pages."""
    formatter.for_type_by_name("alkit.engine.trainer", "Record", record_page)
    formatter.for_type_by_name("alkit.methods", "Methods", methods_page)
    formatter.for_type_by_name("alkit.schedule.timeline", "Timeline", timeline_page)


def record_page(record: Any) -> str:
    """Return what came out, and the last epochs of `record.history`."""
    said = {"method": record.made.get("method", "")}
    said["epochs"] = f"{len(record.history)}, the best {record.best_epoch}"
    said["seconds"] = f"{record.seconds:.2f}"
    said |= {f"test {name}": f"{value:.4g}" for name, value in record.metrics.items()}
    head = " · ".join(f"<b>{escape(name)}</b> {escape(each)}" for name, each in said.items())
    return f"<p>{head}</p>{_table(record.history.tail(ROWS))}"


def timeline_page(timeline: Timeline) -> str:
    """Return how busy every worker was."""
    names = [*timeline.resources]
    shares = {"busy, s": timeline.busy_s, "idle share": timeline.idle_share}
    frame = pd.DataFrame({name: map(each, names) for name, each in shares.items()}, index=names)
    return f"<p>{timeline.span_s:.4g} s, {len(timeline.batch_ends_s)} batches</p>{_table(frame)}"


def methods_page(methods: Mapping[str, Any]) -> str:
    """Return a row a method: family, what it waits for, what it costs, settings."""
    rows = {}
    for name, each in methods.items():
        row = {"family": each.family, "waits for": ", ".join(each.waits_for), "costs": each.costs}
        rows[name] = row | {"settings": ", ".join(own.name for own in fields(each.settings))}
    return _table(pd.DataFrame(rows).T)


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(float_format=lambda value: f"{value:.4g}", border=0)

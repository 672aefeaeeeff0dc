"""The first lines of every notebook: preset, seed, threads, theme and versions."""

import logging
import os
import platform
from typing import Any

import numpy as np
import torch

from alkit import __version__
from alkit.lab import viz
from alkit.lab.parameters import preset_values
from alkit.lab.results import busy


def take_preset(names: dict[str, Any], notebook: str) -> None:
    """Replace the parameters of a notebook by the preset that its first cell names.

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

    The line says how many cores are busy already: times taken on a busy machine say little.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    viz.set_theme()
    # on a machine without a GPU the compiler of torch warns that there is none
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    print(
        f"alkit {__version__} · Python {platform.python_version()} · torch {torch.__version__}"
        f" · numpy {np.__version__} · {threads} operator thread{'s' * (threads > 1)}"
        f" · {busy():.0%} of {os.cpu_count() or 1} cores busy"
    )

"""The first lines of every notebook: seeds, threads, theme, and which versions are running."""

import logging
import os
import platform

import numpy as np
import torch

from alkit import __version__
from alkit.figures import viz
from alkit.records.results import busy


def setup(seed: int, threads: int = 1) -> None:
    """Seed torch's global generator, set operator threads and theme, and print one version line.

    The line says how many cores are busy already: times taken on a busy machine say little.
    """
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    viz.set_theme()
    # on a machine without a GPU torch's compiler warns that there is none
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    print(
        f"alkit {__version__} · Python {platform.python_version()} · torch {torch.__version__}"
        f" · numpy {np.__version__} · {threads} operator thread{'s' * (threads > 1)}"
        f" · {busy():.0%} of {os.cpu_count() or 1} cores busy"
    )

"""Tools for notebooks around the methods: runs, results, comparisons and figures."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "live":
        raise AttributeError(f"alkit.lab has no {name!r}")
    from alkit.lab import viz  # matplotlib takes a second: the command does without

    return viz.live

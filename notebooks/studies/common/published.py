"""Numbers of the publications, each table with its source."""

import pandas as pd

from alkit.base import paths


def published(name: str) -> pd.DataFrame:
    """Return published numbers, `notebooks/results/published/<name>.csv`, with their source."""
    return pd.read_csv(paths.root() / "notebooks/results/published" / f"{name}.csv")

"""Numbers of the publications, each table with its source."""

import pandas as pd

from alkit.data import paths


def published(name: str) -> pd.DataFrame:
    """Return a table of published numbers, `alkit/records/published/<name>.csv`, with its source.

    Raises:
        FileNotFoundError: there is none of that name; names those that there are.
    """
    folder = paths.published_dir()
    path = folder / f"{name}.csv"
    if not path.is_file():
        there = ", ".join(sorted(file.stem for file in folder.glob("*.csv")))
        raise FileNotFoundError(f"no published table {name!r}; there are {there}")
    return pd.read_csv(path)

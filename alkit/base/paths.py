"""Where the project's folders are, found from the package and never from the working directory."""

import os
from pathlib import Path


def root() -> Path:
    """Return the checkout that holds this package, or the working directory if it is installed."""
    checkout = Path(__file__).resolve().parents[2]
    return checkout if (checkout / "notebooks").is_dir() else Path.cwd()


def shared_data_dir() -> Path:
    """Return the folder that holds the data sets: `ALKIT_DATA`, possibly read-only, or `data/`."""
    return Path(os.environ.get("ALKIT_DATA") or root() / "data").expanduser()

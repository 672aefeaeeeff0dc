"""Where data sets lie, and where their owners publish them: `catalog.yaml` says both.

Archives are read as they are, so a set lies as its official archive, as a part of it with a longer
name (`ag_news_csv_train9995.tgz`), or as the folder that the archive unpacks to.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

from alkit.data import paths


@cache
def sets() -> dict[str, dict[str, Any]]:
    """Return what the catalogue says of each set."""
    text = Path(__file__).with_name("catalog.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return found


def find(name: str) -> Path:
    """Return where a set lies: a whole one before a part, `ALKIT_DATA` before `data/`.

    Raises:
        FileNotFoundError: it is nowhere; says where was looked and how to get it.
    """
    entry, bases = sets()[name], (paths.shared_data_dir(), paths.data_dir(), paths.root())
    whole, parts = entry.get("archives", [])[:1], entry.get("archives", [])[1:]
    folders = ["", name, *entry.get("near", ())]
    for pattern in (*whole, *entry.get("folders", ()), *parts):
        inner = pattern in entry.get("folders", ())
        for base in bases:
            for folder in folders:
                # the top folder is no set by itself: its train.csv could be anything
                if not folder and (base == paths.root() or (inner and "/" not in pattern)):
                    continue
                for found in sorted((base / folder).glob(pattern)):
                    return found.parent if inner else found
    where = " and ".join(dict.fromkeys(map(str, bases[:2])))
    how = entry.get("how", f"alkit.datasets.fetch({name!r}) downloads it")
    raise FileNotFoundError(f"{name} is not here: looked in {where}; {how}")


def fetch(name: str) -> list[Path]:
    """Download the official files of a set to data/NAME; their SHA-256 is compared.

    Raises:
        ValueError: the set has no address.
        RuntimeError: another file lies at the address.
    """
    entry = sets()[name]
    if "remotes" not in entry:
        raise ValueError(f"{name} has no address: {entry['how']}")
    home = paths.root() / "glove" if name == "glove.6B" else paths.data_dir() / name
    home.mkdir(parents=True, exist_ok=True)
    files = []
    for url, sha256 in entry["remotes"]:
        files.append(home / url.rpartition("/")[2])
        torch.hub.download_url_to_file(url, str(files[-1]), hash_prefix=sha256 or None)
    return files

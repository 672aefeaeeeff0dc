"""Files of parameters and records, read strictly: UTF-8, no name twice, no bottomless nesting.

What is wrong with a file is one sentence that begins with its name.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

# to YAML 1.1, 010 is eight and 1:30 is ninety; whoever writes them means something else
DOUBTFUL = re.compile(r"[-+]?(0[\d_]+|\d+(:[0-5]?\d)+(\.\d*)?)")


class Unreadable(ValueError):
    """A file that is not what it should be, or a value in it."""


class _Loader(yaml.SafeLoader):
    """YAML's safe values; a name that is there twice is refused, and so are doubtful numbers."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    _once(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
    return loader.construct_mapping(node, deep=True)


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if DOUBTFUL.fullmatch(node.value):
        plain = node.value.lstrip("+-0_") or "0"
        advice = f'write {plain if plain.isdigit() else "seconds"}, or "{node.value}" for the text'
        raise Unreadable(f"{node.value} is not the same number to everybody: {advice}")
    kind = node.tag.rpartition(":")[2]
    return getattr(loader, f"construct_yaml_{kind}")(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number)


def _once(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Unreadable(f"{name!r} is there twice: keep one of them")
        seen.add(name)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _once(name for name, _ in pairs)
    return dict(pairs)


_JSON = json.JSONDecoder(object_pairs_hook=_pairs)


def json_of(text: str) -> Any:
    """Return the value that a JSON text holds; a ValueError or RecursionError says why not."""
    return _JSON.decode(text)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Say in one sentence what is wrong with what is read inside of this.

    Raises:
        Unreadable: it begins with `where`.
    """
    try:
        yield
    except RecursionError as error:
        raise Unreadable(f"{where} cannot be read: it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise Unreadable(f"{where} cannot be read: it is not UTF-8 ({error.reason})") from error
    except (OSError, TypeError, ValueError, csv.Error, yaml.YAMLError) as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise Unreadable(f"{where} cannot be read: {said}") from error


def read_json(file: Path) -> Any:
    """Return the value that a JSON file holds; Unreadable says why not."""
    with reading(file.name):
        return json_of(file.read_text(encoding="utf-8"))


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty file is an empty one.

    Raises:
        Unreadable: it is anything else, or is not as the head of this file says.
    """
    with reading(file.name):
        content = yaml.load(file.read_text(encoding="utf-8"), _Loader) or {}
        if not isinstance(content, dict):
            raise Unreadable("it must hold lines of `name: value`")
        return content

"""Files of parameters and records, read strictly: UTF-8, no name twice, no bottomless nesting.

What is wrong with a file is one sentence that begins with its name.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Unreadable", "json_of", "read_json", "read_text", "read_yaml"]

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
    """Return the value that a JSON text holds.

    Raises:
        Unreadable: it is no JSON, holds a name twice, or is nested too deeply to be read.
    """
    try:
        return _JSON.decode(text)
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is no JSON: {error}") from error


def read_text(file: Path) -> str:
    """Return a file's text.

    Raises:
        Unreadable: there is no such file, or it is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"{file.name} cannot be read: it is not UTF-8 ({error.reason})") from error
    except OSError as error:
        raise Unreadable(f"{file.name} cannot be read: {error.strerror}") from error


def read_json(file: Path) -> Any:
    """Return the value that a JSON file holds; Unreadable names the file."""
    text = read_text(file)
    try:
        return json_of(text)
    except Unreadable as error:
        raise Unreadable(f"{file.name} cannot be read: {error}") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty file is an empty one.

    Raises:
        Unreadable: it is anything else, or is not as the head of this file says.
    """
    text = read_text(file)
    try:
        content = yaml.load(text, _Loader)
    except RecursionError as error:
        raise Unreadable(f"{file.name} cannot be read: it is nested too deeply") from error
    except Unreadable as error:
        raise Unreadable(f"{file.name} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise Unreadable(f"{file.name} cannot be read as YAML: {said}") from error
    if not isinstance(content or {}, dict):
        raise Unreadable(f"{file.name} must hold lines of `name: value`")
    return content or {}

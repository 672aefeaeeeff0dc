"""What a notebook takes: the names, types and defaults in its parameters cell, and its presets."""

import ast
import contextlib
import difflib
import functools
import hashlib
import json
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from alkit.data import paths
from alkit.records.strict import Unreadable, read_json, read_yaml

SCALARS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,)}
TYPES = {*SCALARS, *(f"list[{name}]" for name in ("int", "float", "str"))}


class ParameterError(Unreadable):
    """Bad input: a notebook, preset, sweep or value that cannot be run as asked."""


@dataclass(frozen=True)
class Parameter:
    """One line of a notebook's parameters cell: `name: type = default  # comment`."""

    name: str
    type: str
    default: Any
    comment: str


def find_notebook(name: str | Path, *folders: Path) -> Path:
    """Return the notebook of that path, name or number, of `folders` or of `notebooks/`."""
    wanted = Path(name) if str(name).endswith(".ipynb") else Path(f"{name}.ipynb")
    home = paths.root() / "notebooks"
    for folder in (*folders, Path.cwd(), home):
        if (folder / wanted).is_file():
            return (folder / wanted).resolve()
    numbered = sorted(home.glob(f"{wanted.stem}_*.ipynb")) if wanted.stem.isdigit() else []
    if len(numbered) == 1:
        return numbered[0].resolve()
    near = _nearest(wanted.stem, sorted(path.stem for path in home.glob("*.ipynb")))
    raise ParameterError(f"there is no notebook {name}{near}")


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook's file."""
    try:
        return read_json(path)["cells"]
    except (Unreadable, KeyError, TypeError) as error:
        raise ParameterError(f"{path.name} is no notebook: {error!r}") from error


def title(path: Path) -> str:
    """Return the first heading of a notebook."""
    lines = (line for cell in cells(path) for line in "".join(cell["source"]).splitlines())
    return next((line.lstrip("# ") for line in lines if line.startswith("# ")), "")


def parameters(notebook: str | Path) -> dict[str, Parameter]:
    """Read the one cell tagged `parameters`: lines of `name: type = literal  # comment`.

    Raises: ParameterError, naming notebook and line, where the cell is anything else.
    """
    path = find_notebook(notebook)
    return dict(_parameters(path, path.stat().st_mtime_ns, path.stat().st_size))


def of_checkout(notebook: str) -> dict[str, Parameter]:
    """Return the parameters of a notebook of this checkout; none where it isn't there."""
    path = paths.root() / "notebooks" / f"{notebook}.ipynb"
    return parameters(path) if path.is_file() else {}


def defaults(notebook: str) -> dict[str, Any]:
    """Return the defaults of a notebook of this checkout by name; none where it isn't there."""
    return {name: own.default for name, own in of_checkout(notebook).items()}


@functools.lru_cache(maxsize=64)  # a sweep asks for every point
def _parameters(path: Path, changed_ns: int, size: int) -> dict[str, Parameter]:
    tagged = [c for c in cells(path) if "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise ParameterError(f"{path.name} has {len(tagged)} cells tagged 'parameters': tag one")
    source = "".join(tagged[0]["source"])
    try:
        statements, comments = ast.parse(source).body, _comments(source)
    except SyntaxError as error:
        raise _bad_line(path, error.lineno or 1, f"is no Python: {error.msg}") from error
    found: dict[str, Parameter] = {}
    for statement in statements:
        one = _parameter(path, statement, comments)
        if one.name in found:
            raise _bad_line(path, statement.lineno, f"defines {one.name} a second time")
        found[one.name] = one
    return found


def check(
    known: Mapping[str, Parameter], values: Mapping[str, Any], source: str = "given"
) -> dict[str, Any]:
    """Return the values in their parameters' types (an int becomes a float where one is wanted).

    Args:
        source: who gave the values, for the messages.
    Raises: ParameterError for an unknown name or a value of another type.
    """
    checked = {}
    for name, value in values.items():
        if name not in known:
            allowed = ", ".join(known) or "none at all"
            near = _nearest(str(name), list(known))
            raise ParameterError(f"{source}: no parameter {name!r}{near} (allowed: {allowed})")
        try:
            checked[name] = _fit(value, known[name].type)
        except TypeError as error:
            raise ParameterError(f"{source}: {name} must be {error}") from error
    return checked


def preset_values(notebook: str | Path, preset: str) -> dict[str, Any]:
    """Return what a preset sets, from `params/<notebook>.<preset>.yaml` beside the notebook.

    The preset "smoke" is the notebook's defaults and has no file.
    """
    path = find_notebook(notebook)
    if preset == "smoke":
        return {}
    file = path.parent / "params" / f"{path.stem}.{preset}.yaml"
    if not re.fullmatch(r"[\w-]+", preset) or not file.is_file():
        there = presets(path)
        near = _nearest(preset, there)
        raise ParameterError(
            f"{path.name} has no preset {preset!r}{near} (there is: {', '.join(there)})"
        )
    return check(parameters(path), read_yaml(file), file.name)


def presets(path: Path) -> list[str]:
    """Name a notebook's presets; sweeps are none."""
    files = (path.parent / "params").glob(f"{path.stem}.*.yaml")
    names = sorted(file.name[len(path.stem) + 1 : -len(".yaml")] for file in files)
    return ["smoke", *(name for name in names if not name.endswith("sweep"))]


def changes(notebook: str | Path, preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not those of the preset."""
    usual = {name: own.default for name, own in parameters(notebook).items()}
    usual |= {"preset": preset} | preset_values(notebook, preset)
    return {name: value for name, value in values.items() if usual.get(name) != value}


def slug(values: Mapping[str, Any]) -> str:
    """Return a file name's part that tells these values from all others."""
    texts = {name: _text(value) for name, value in sorted(values.items())}
    joined = "_".join(f"{name}={text}" for name, text in texts.items())
    safe = re.sub(r"[^\w.=+,-]+", "-", joined)[:80]
    if all(map(_is_plain, values.values())) and safe == joined:
        return safe
    digest = hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode())
    return f"{safe}-{digest.hexdigest()[:8]}"


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _is_plain(value: Any) -> bool:
    """Tell values that their text gives back from those that it may mix up."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    words = isinstance(value, str) and value not in ("None", "True", "False")
    return bool(re.fullmatch(r"[A-Za-z][\w+-]*", value)) if words else not isinstance(value, str)


def _comments(source: str) -> dict[int, str]:
    tokens = tokenize.generate_tokens(StringIO(source).readline)
    return {t.end[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}


def _parameter(path: Path, line: ast.stmt, comments: Mapping[int, str]) -> Parameter:
    if (
        not isinstance(line, ast.AnnAssign)
        or not isinstance(line.target, ast.Name)
        or not line.value
    ):
        raise _bad_line(path, line.lineno, "must read `name: type = literal`")
    name, wanted = line.target.id, ast.unparse(line.annotation)
    if wanted == "None" or not set(wanted.split(" | ")) <= {*TYPES, "None"}:
        allowed = ", ".join(sorted(TYPES))
        raise _bad_line(path, line.lineno, f"has the type {wanted}: use {allowed}, or one | None")
    try:
        default = _fit(ast.literal_eval(line.value), wanted)
    except TypeError as error:
        raise _bad_line(path, line.lineno, f"is wrong: {name} must be {error}") from error
    except ValueError as error:
        advice = "is no literal: derive values in the next cell, where they follow an override"
        raise _bad_line(path, line.lineno, advice) from error
    return Parameter(name, wanted, default, comments.get(line.end_lineno or line.lineno, ""))


def _bad_line(path: Path, line: int, what: str) -> ParameterError:
    return ParameterError(f"{path.name}: line {line} of the parameters cell {what}")


def _nearest(name: str, among: list[str]) -> str:
    near = difflib.get_close_matches(name, among, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _fit(value: Any, wanted: str) -> Any:
    """Return the value as one of the wanted types, or raise a TypeError that says what to do."""
    for option in wanted.split(" | "):
        with contextlib.suppress(TypeError):
            return _convert(value, option)
    raise TypeError(f"{wanted}, not {value!r} ({type(value).__name__}): {_advice(value, wanted)}")


def _convert(value: Any, option: str) -> Any:
    if option.startswith("list["):
        if not isinstance(value, list | tuple):
            raise TypeError
        return [_convert(item, option[len("list[") : -1]) for item in value]
    fits = value is None if option == "None" else isinstance(value, SCALARS[option])
    # a bool is an int to Python, a switch to everybody else
    if not fits or isinstance(value, bool) != (option == "bool"):
        raise TypeError
    return float(value) if option == "float" else value


def _advice(value: Any, wanted: str) -> str:
    items = value if isinstance(value, list | tuple) else [value]
    for word in (item for item in items if isinstance(item, str) and "float" in wanted):
        if number := re.fullmatch(r"([+-]?\d+)(\.\d*)?[eE]([+-]?)(\d+)", word.strip()):
            whole, part, sign, power = number.groups()
            written = f"{whole}{part or '.0'}e{sign or '+'}{power}"
            return f"YAML reads {word} as text, write {written}"
    if "bool" in wanted:
        return "write True or False"
    if "list" in wanted and items is not value:
        return "write a list, as in ['a', 'b']" if "str" in wanted else "write a list, as in [0, 1]"
    if "str" in wanted:
        return f'write "{value}", with the quotes'
    return f"give a value of the type {wanted}"

"""What a notebook takes: names, types and defaults in its parameters cell, and its presets."""

import ast
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from alkit.data import paths


class ParameterError(ValueError):
    """A notebook, preset, sweep or value that cannot be run."""


class Parameter(NamedTuple):
    """One line of a notebook's parameters cell: `name: type = default  # comment`."""

    type: str
    default: Any
    comment: str


def find_notebook(name: str | Path, *folders: Path) -> Path:
    """Return the notebook of that path, name or number, of `folders` or of `notebooks/`."""
    wanted, home = Path(f"{str(name).removesuffix('.ipynb')}.ipynb"), paths.root() / "notebooks"
    found = [f / wanted for f in (*folders, Path.cwd(), home) if (f / wanted).is_file()]
    found += sorted(home.glob(f"{wanted.stem}_*.ipynb")) if wanted.stem.isdigit() else []
    if not found:
        near = _nearest(wanted.stem, (path.stem for path in home.glob("*.ipynb")))
        raise ParameterError(f"there is no notebook {name}{near}")
    return found[0].resolve()


def parameters(notebook: str | Path) -> dict[str, Parameter]:
    """Read the one cell tagged `parameters`: lines of `name: type = literal  # comment`."""
    path = find_notebook(notebook)
    try:
        return dict(_parameters(path, path.stat().st_mtime_ns))
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        said = f"its parameters cell must hold lines of `name: type = literal`: {error}"
        raise ParameterError(f"{path.name}: {said}") from error


@functools.lru_cache(maxsize=64)  # the tables ask for every run
def _parameters(path: Path, changed_ns: int) -> dict[str, Parameter]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tagged = [c["source"] for c in cells if "parameters" in c["metadata"].get("tags", ())]
    if len(tagged) != 1:
        raise ValueError(f"{len(tagged)} cells tagged 'parameters'")
    source, found = "".join(tagged[0]), dict[str, Parameter]()
    for line in ast.parse(source).body:
        if not isinstance(line, ast.AnnAssign) or not line.value:
            raise ValueError(f"line {line.lineno} does not")
        name, kind = ast.unparse(line.target), ast.unparse(line.annotation)
        if name in found:
            raise ValueError(f"line {line.lineno} defines {name} a second time")
        comment = source.splitlines()[(line.end_lineno or 1) - 1].partition("  # ")[2]
        found[name] = Parameter(kind, _fit(ast.literal_eval(line.value), kind), comment)
    return found


def of_checkout(notebook: str) -> dict[str, Parameter]:
    """Return the parameters of a notebook of this checkout; none where it isn't there."""
    path = paths.root() / "notebooks" / f"{notebook}.ipynb"
    return parameters(path) if path.is_file() else {}


def defaults(notebook: str) -> dict[str, Any]:
    """Return their defaults by name."""
    return {name: each.default for name, each in of_checkout(notebook).items()}


def check(
    known: Mapping[str, Parameter], values: Mapping[str, Any], source: str = "given"
) -> dict[str, Any]:
    """Return the values in their parameters' types (an int becomes a float where one is wanted).

    Args:
        source: who gave the values, for the messages.
    Raises:
        ParameterError: a name is unknown, or a value has another type.
    """
    checked = {}
    for name, value in values.items():
        if name not in known:
            near, allowed = _nearest(str(name), known), ", ".join(known) or "none"
            raise ParameterError(f"{source}: no parameter {name!r}{near} (allowed: {allowed})")
        try:
            checked[name] = _fit(value, known[name].type)
        except TypeError as error:
            raise ParameterError(f"{source}: {name} must be {error}") from error
    return checked


def _fit(value: Any, kind: str) -> Any:
    for option in kind.split(" | "):
        if option.startswith("list[") and isinstance(value, list | tuple):
            return [_fit(item, option[len("list[") : -1]) for item in value]
        if type(value) is int and option == "float":
            return float(value)
        if value is None and option == "None" or type(value).__name__ == option:
            return value
    hint = " (YAML reads 1e-3 as a text: write 1.0e-3)" if "float" in kind else ""
    raise TypeError(f"{kind}, not {value!r}{hint}")


def preset_values(notebook: str | Path, preset: str) -> dict[str, Any]:
    """Return what `params/NOTEBOOK.PRESET.yaml` sets; "smoke" has no file and sets nothing."""
    path = find_notebook(notebook)
    if preset not in (there := presets(path)):
        near = f"{_nearest(preset, there)} (there is: {', '.join(there)})"
        raise ParameterError(f"{path.name} has no preset {preset!r}{near}")
    file = path.parent / "params" / f"{path.stem}.{preset}.yaml"
    return {} if preset == "smoke" else check(parameters(path), read_yaml(file), file.name)


def presets(path: Path) -> list[str]:
    """Name a notebook's presets; sweeps are none."""
    names = (
        file.name.split(".")[1] for file in (path.parent / "params").glob(f"{path.stem}.*.yaml")
    )
    return ["smoke", *sorted(name for name in names if name != "sweep")]


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the lines of `name: value` that a file holds; none of an empty one."""
    text = file.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError) as error:
        raise ParameterError(f"{file.name} is no YAML: {' '.join(str(error).split())}") from error
    names = re.findall(r"^(\w+):", text, re.MULTILINE)
    if not isinstance(content, dict) or len(names) > len(set(names)):
        raise ParameterError(f"{file.name} must hold lines of `name: value`, each name once")
    return content


def changes(notebook: str | Path, preset: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not those of the preset."""
    usual = {name: each.default for name, each in parameters(notebook).items()}
    usual |= {"preset": preset} | preset_values(notebook, preset)
    return {name: value for name, value in values.items() if usual.get(name) != value}


def slug(values: Mapping[str, Any]) -> str:
    """Return a file name's part that tells these values from others."""
    texts = {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in values.items()}
    joined = "_".join(f"{name}={text}" for name, text in sorted(texts.items()))
    safe = re.sub(r"[^\w.=+,-]+", "-", joined)[:80]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    return safe if safe == joined else f"{safe}-{digest}"


def _nearest(name: str, among: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(among), n=1)
    return f", did you mean {near[0]!r}?" if near else ""

"""Read the parameters of a notebook, names and defaults in a tagged cell, and its presets."""

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from alkit.base import paths
from alkit.base.arguments import meant


def find_notebook(name: str | Path, *folders: Path) -> Path:
    """Return the notebook of that path, name or number, of `folders` or of `notebooks/`."""
    wanted, home = Path(f"{str(name).removesuffix('.ipynb')}.ipynb"), paths.root() / "notebooks"
    found = [f / wanted for f in (*folders, Path.cwd(), home) if (f / wanted).is_file()]
    found += sorted(home.glob(f"{wanted.stem}_*.ipynb")) if wanted.stem.isdigit() else []
    if not found:
        near = meant(wanted.stem, (path.stem for path in home.glob("*.ipynb")))
        raise ValueError(f"there is no notebook {name}{near}")
    return found[0].resolve()


def parameters(notebook: str | Path) -> dict[str, Any]:
    """Return the defaults in cells tagged `parameters`, lines of `name = literal`, or with a type.

    The reader of papermill passes over types such as `int | None`.
    """
    path, found = find_notebook(notebook), dict[str, Any]()
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    tagged = [each for each in cells if "parameters" in each["metadata"].get("tags", ())]
    if any(each["cell_type"] != "code" for each in tagged):
        raise ValueError(f"{path.name}: a cell of text has the tag parameters: give it to the code")
    text = "\n".join("".join(each["source"]) for each in tagged)
    lines: Any = ast.parse(re.sub(r"^[%!].*", "", text, flags=re.MULTILINE)).body
    for line in lines:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue  # a text that explains
        own = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
        try:
            [name], value = own, ast.literal_eval(line.value)
        except (ValueError, AttributeError) as error:
            said = f"{path.name}: `{ast.unparse(line)}` is no `name = literal`"
            raise ValueError(said) from error
        found[ast.unparse(name)] = value
    return found


def check(known: Mapping[str, Any], values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the values, an int as a float where the default is one; `source` begins a message."""
    made = dict(values)
    for name, value in values.items():
        if name not in known:
            said = f"no parameter {name!r}{meant(str(name), known)}"
            raise ValueError(f"{source}: {said}: there are {', '.join(known) or 'none'}")
        kind = type(known[name])
        if kind is float and type(value) is int:
            made[name] = float(value)
        elif type(value) is not kind and None not in (value, known[name]):
            hint = " (YAML reads 1e-3 as a text: write 1.0e-3)" if kind is float else ""
            raise ValueError(f"{source}: {name} must be {kind.__name__}, not {value!r}{hint}")
    return made


def preset_values(notebook: str | Path, preset: str) -> dict[str, Any]:
    """Return the values in `params/NOTEBOOK.PRESET.yaml`; "smoke" has no file and sets nothing."""
    path = find_notebook(notebook)
    if preset not in (there := presets(path)):
        near = f"{meant(preset, there)}: there is {', '.join(there)}"
        raise ValueError(f"{path.name} has no preset {preset!r}{near}")
    file = path.parent / "params" / f"{path.stem}.{preset}.yaml"
    return {} if preset == "smoke" else check(parameters(path), read_yaml(file), file.name)


def presets(path: Path) -> list[str]:
    """Name the presets of a notebook; sweeps don't count as such."""
    names = (f.name.split(".")[1] for f in (path.parent / "params").glob(f"{path.stem}.*.yaml"))
    return ["smoke", *sorted(name for name in names if name != "sweep")]


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the lines of `name: value` that a file holds; none of an empty one."""
    try:
        content = yaml.safe_load(text := file.read_text(encoding="utf-8")) or {}
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{file.name} can't be read as YAML in UTF-8: {error}") from error
    names = re.findall(r"^(\w+):", text, re.MULTILINE)  # YAML takes the last of two
    if not isinstance(content, dict) or len(names) > len(set(names)):
        raise ValueError(f"{file.name} must hold lines of `name: value`, each name once")
    return content

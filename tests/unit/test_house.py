"""The house: twelve rooms and a front, and arrows that go one way."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import alkit

HOUSE = Path(alkit.__file__).parent
METHODS = ("al", "delayed", "split", "elastic", "dtp")
FLOORS = (("base",), ("data",), ("schedule",), ("engine",), ("models",))
FLOORS += ((*METHODS, "judging", "lab"),)
FRONT = ("checks.py", "command.py", "fitting.py", "methods.py", "saved.py")
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor}


def test_the_rooms_are_these():
    kept = {path.name for path in HOUSE.iterdir() if path.name != "__pycache__"}
    assert kept == {"__init__.py", "__main__.py", "py.typed", *FRONT, *FLOOR}
    assert len(FLOOR) == 12


def _imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of what a file imports of the package, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} imports relatively"
            yield from ((node.module or "", alias.name) for alias in node.names)


def _upwards(room: str, module: str, name: str) -> bool:
    """Whether a file of `room` must not import this."""
    first, _, rest = module.partition(".")
    if first != "alkit":
        return first in ("studies", "notebooks", "tests")
    other = rest.split(".")[0] or name
    if other in (room, "__version__"):  # the version is a constant of a root that imports nothing
        return False
    if room == "lab":  # it knows no method, nor what runs one
        return other not in ("base", "schedule")
    return FLOOR.get(other, len(FLOORS)) >= FLOOR[room]


@pytest.mark.parametrize("room", FLOOR)
def test_arrows_go_down_only(room):
    wrong = [
        f"{path.relative_to(HOUSE)} imports {name or ''} of {module}"
        for path in sorted((HOUSE / room).rglob("*.py"))
        for module, name in _imports(path)
        if _upwards(room, module, name)
    ]
    assert not wrong


def _graph() -> dict[str, set[str]]:
    """Return what each file imports of the package, wherever in the file."""
    files = {
        f"alkit.{'.'.join(p.relative_to(HOUSE).with_suffix('').parts)}": p
        for p in HOUSE.rglob("*.py")
    }
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    return {
        own: {
            found
            for module, name in _imports(path)
            for found in [f"{module}.{name}" if f"{module}.{name}" in files else module]
            if found in files and found != own
        }
        for own, path in files.items()
    }


def test_no_file_leads_back_to_itself():
    tuple(TopologicalSorter(_graph()).static_order())  # a CycleError names the files of a circle


def test_the_schedule_needs_no_torch():
    """But for torch's own orders, when they are asked for."""
    files = {*(HOUSE / "schedule").glob("*.py")} - {HOUSE / "schedule" / "torch_orders.py"}
    assert "torch" not in {module.split(".")[0] for f in files for module, _ in _imports(f)}

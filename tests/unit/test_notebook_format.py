"""Every notebook keeps the house's form: sizes, parameters, stripped outputs, links that lead on.

A check takes a notebook (a Book) and returns its complaints; each was made to complain once, on a
good notebook with one fault.
"""

import ast
import json
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from alkit.records import batch, contents, parameters
from alkit.records.parameters import ParameterError, read_yaml

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMS = sorted((ROOT / "notebooks" / "params").glob("*.yaml"))
CELL_LINES, MEDIAN_LINES, CODE_LINES, CODE_CELLS, FILE_KB = 25, 8, 250, 25, 200
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|root|work|tmp)\b(?:/\w*)?")
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\s[^>]*?(?:src|href)=[\"']([^\"']+)")


@dataclass(frozen=True)
class Book:
    """A notebook file, read without nbformat's repairs."""

    path: Path

    @property
    def node(self) -> NotebookNode:
        return nbformat.v4.reads(self.path.read_text(encoding="utf-8"))

    def cells(self, kind: str) -> list[NotebookNode]:
        return [cell for cell in self.node.cells if cell.cell_type == kind]

    def code_lines(self) -> list[int]:
        """Lines of every code cell that are not blank."""
        sources = [cell.source for cell in self.cells("code")]
        return [len([line for line in text.splitlines() if line.strip()]) for text in sources]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def valid_file(book: Book) -> list[str]:
    try:
        nbformat.validate(book.node)
    except nbformat.ValidationError as error:
        return [f"is not valid: {error.message}"]
    return []


def portable_kernel(book: Book) -> list[str]:
    name = book.node.metadata.get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"has the kernel {name}"]


def one_parameters_cell(book: Book) -> list[str]:
    try:
        known = parameters.parameters(book.path)
    except ParameterError as error:
        return [str(error)]
    bare = [f"parameter {name} has no comment" for name, one in known.items() if not one.comment]
    preset = known.get("preset")
    if preset is None or (preset.type, preset.default) != ("str", "smoke"):
        return [*bare, 'has no `preset: str = "smoke"`']
    return bare


def parameters_stay(book: Book) -> list[str]:
    """A run records what its parameters hold, so no other cell may take their names."""
    own = [cell for cell in book.cells("code") if "parameters" in tags(cell)]
    others = [cell for cell in book.cells("code") if cell not in own and "%" not in cell.source[:1]]
    known, set_again = (
        {
            node.id
            for cell in some
            for node in ast.walk(ast.parse(cell.source))
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for some in (own[:1], others)
    )
    return [f"sets the parameter {name} again" for name in sorted(known & set_again)]


def name_of_record_stays(book: Book) -> list[str]:
    """What holds the notebook's name is what its committed results are read by."""
    trees = [ast.parse(cell.source) for cell in book.cells("code") if "%" not in cell.source[:1]]
    lines = [node for tree in trees for node in ast.walk(tree)]
    given = [node for node in lines if isinstance(node, ast.Assign)]
    loops = [node.target for node in lines if isinstance(node, ast.For)]
    holds = [
        node.targets
        for node in given
        if isinstance(node.value, ast.Constant) and node.value.value == book.path.stem
    ]
    targets = [*loops, *(target for node in given for target in node.targets)]
    taken = [node.id for each in targets for node in ast.walk(each) if isinstance(node, ast.Name)]
    own = [target.id for each in holds for target in each if isinstance(target, ast.Name)]
    return [
        f"takes {name}, which is its own, for something else"
        for name in own
        if taken.count(name) > 1
    ]


def numbered_title(book: Book) -> list[str]:
    first, number = book.node.cells[0], book.path.name[:2]
    if first.cell_type == "markdown" and re.match(rf"# {number} \S", first.source):
        return []
    return [f"does not start with a markdown cell '# {number} Title'"]


def prose_and_sizes(book: Book) -> list[str]:
    lines, prose = book.code_lines(), len(book.cells("markdown"))
    found = [
        (prose < len(lines), f"has {prose} prose cells and {len(lines)} code cells"),
        (len(lines) > CODE_CELLS, f"has {len(lines)} code cells"),
        (max(lines) > CELL_LINES, f"has a cell of {max(lines)} lines"),
        (statistics.median(lines) > MEDIAN_LINES, f"has cells of {statistics.median(lines)} lines"),
        (sum(lines) > CODE_LINES, f"has {sum(lines)} lines of code"),
        (book.path.stat().st_size > FILE_KB * 1000, "is too large a file"),
    ]
    return [complaint for wrong, complaint in found if wrong]


def stripped(book: Book) -> list[str]:
    kept = [cell for cell in book.cells("code") if cell.outputs]
    errors = [o for cell in kept for o in cell.outputs if o.output_type == "error"]
    loose = [cell for cell in kept if "keep_output" not in tags(cell)]
    return [f"keeps the output of {cell.source[:40]!r}" for cell in loose] + [
        f"keeps the error {error.ename}" for error in errors
    ]


def no_trailing_semicolon(book: Book) -> list[str]:
    """nbval ignores it, so a test would see an output that the notebook does not show."""
    ends = [cell.source.rstrip().splitlines()[-1:] for cell in book.cells("code")]
    return [f"ends a cell in {last!r}" for (last,) in filter(None, ends) if last.endswith(";")]


def no_machine_paths(book: Book) -> list[str]:
    found = MACHINE_PATH.findall(book.path.read_text(encoding="utf-8"))
    return [f"names the path {path} of one machine" for path in found]


def formulas_are_latex(book: Book) -> list[str]:
    """A command after two backslashes is a new line and a word."""
    formulas = re.findall(r"\$\$?[^$]+\$\$?", "\n".join(c.source for c in book.cells("markdown")))
    doubled = [word for each in formulas for word in re.findall(r"\\\\[a-zA-Z]+", each)]
    return [f"has formulas with {', '.join(doubled)}"] if doubled else []


def answers_are_folded(book: Book) -> list[str]:
    """Exercises have answers, which nobody reads by accident."""
    text = "\n".join(cell.source for cell in book.cells("markdown"))
    asked, folded = "*Exercise" in text, "<details><summary>Answers</summary>\n\n" in text
    return ["has exercises without folded answers"] if asked and not folded else []


def links_lead_on(book: Book) -> list[str]:
    text = "\n".join(cell.source for cell in book.cells("markdown"))
    return dead_links(text, book.path.parent)


def dead_links(text: str, folder: Path) -> list[str]:
    """Return the relative links of a markdown text that point to no file."""
    targets = [(one or other).split("#")[0] for one, other in LINK.findall(text)]
    local = [t for t in targets if t and not re.match(r"[a-z][a-z+.-]*:", t)]
    return [f"links to {t}, which is not there" for t in local if not (folder / t).exists()]


CHECKS = (
    valid_file,
    portable_kernel,
    one_parameters_cell,
    parameters_stay,
    name_of_record_stays,
    numbered_title,
    prose_and_sizes,
    stripped,
    no_trailing_semicolon,
    no_machine_paths,
    formulas_are_latex,
    answers_are_folded,
    links_lead_on,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path, check: Callable[[Book], list[str]]):
    assert check(Book(path)) == []


@pytest.mark.parametrize(
    "path", [p for p in NOTEBOOKS if len(parameters.presets(p)) > 1], ids=lambda path: path.stem
)
def test_a_preset_is_taken_before_anything_uses_a_parameter(path: Path):
    code = Book(path).cells("code")
    at = next(i for i, cell in enumerate(code) if "parameters" in tags(cell))
    lines = [line for cell in code[at + 1 :] for line in ast.parse(cell.source).body]
    first = next(each for each in lines if not isinstance(each, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == f"take_preset(globals(), '{path.stem}')"


def test_there_are_notebooks_and_each_number_is_taken_once():
    assert NOTEBOOKS
    numbers = [path.name[:2] for path in NOTEBOOKS]
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", path.name) for path in NOTEBOOKS)
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("file", PARAMS, ids=lambda file: file.name)
def test_preset_or_sweep(file: Path):
    assert preset_complaints(file) == []


def preset_complaints(file: Path) -> list[str]:
    """Check a preset against its notebook's parameters, a sweep with all its points."""
    try:
        if "notebook" in read_yaml(file):
            assert batch.plan_sweep(file)
            return []
        notebook, _, preset = file.stem.partition(".")
        parameters.preset_values(file.parent.parent / f"{notebook}.ipynb", preset)
    except ParameterError as error:
        return [str(error)]
    return []


PAGES = ["README.md", "RESULTS.md", "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_lead_on(page: Path | str):
    path = ROOT / page
    assert dead_links(path.read_text(encoding="utf-8"), path.parent) == []


# ---- each check complains about the fault it is there for, and no other check does ----


def good_notebook() -> NotebookNode:
    """Return a small notebook without a fault."""
    v4 = nbformat.v4
    cells = [
        v4.new_markdown_cell("# 05 A title\n\n[next](06_y.ipynb#1) [paper](https://x.org/tmp/1)"),
        v4.new_code_cell('preset: str = "smoke"  # which\nlr: float = 0.1  # rate'),
        v4.new_markdown_cell('## 1 An idea\n\n<img src="06_y.ipynb"> and F/home, see [a](#idea)'),
        v4.new_code_cell("print(1)"),
        v4.new_markdown_cell("## 2 The end"),
    ]
    cells[1].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def add_code(nb: NotebookNode, source: str, count: int = 1, prose: bool = True) -> None:
    for _ in range(count):
        nb.cells.append(nbformat.v4.new_code_cell(source))
        if prose:
            nb.cells.append(nbformat.v4.new_markdown_cell("why"))


def set_parameters(nb: NotebookNode, source: str) -> None:
    nb.cells[1].source = source


def set_outputs(nb: NotebookNode, output: NotebookNode, *tags: str) -> None:
    nb.cells[3].outputs, nb.cells[3].metadata["tags"] = [output], list(tags)


PRINTED = nbformat.v4.new_output("stream", text="1\n")
RAISED = nbformat.v4.new_output("error", ename="KeyError", evalue="x", traceback=[])
FAULTS: dict[str, tuple[Callable, Callable[[NotebookNode], object], str]] = {
    "format": (valid_file, lambda nb: nb.cells[0].update(colour="red"), "not valid"),
    "formula": (
        formulas_are_latex,
        lambda nb: nb.cells[2].update(source="a $\\\\times$ b"),
        r"\\times",
    ),
    "no answers": (
        answers_are_folded,
        lambda nb: nb.cells[2].update(source="*Exercises:* (1) Why?"),
        "without folded answers",
    ),
    "kernel": (portable_kernel, lambda nb: nb.metadata.kernelspec.update(name="mine"), "mine"),
    "no kernel": (portable_kernel, lambda nb: nb.metadata.pop("kernelspec"), "kernel None"),
    "no parameters": (
        one_parameters_cell,
        lambda nb: nb.cells[1].metadata.update(tags=[]),
        "0 cells tagged",
    ),
    "two parameters cells": (
        one_parameters_cell,
        lambda nb: nb.cells[3].metadata.update(tags=["parameters"]),
        "2 cells tagged",
    ),
    "derived parameter": (
        one_parameters_cell,
        lambda nb: set_parameters(nb, 'preset: str = "smoke"  # which\nn: int = 2 * 3  # six'),
        "must hold lines of `name: type = literal`",
    ),
    "bare parameter": (
        one_parameters_cell,
        lambda nb: set_parameters(nb, 'preset: str = "smoke"  # which\nn: int = 6'),
        "n has no comment",
    ),
    "no preset": (
        one_parameters_cell,
        lambda nb: set_parameters(nb, "n: int = 6  # six"),
        "has no `preset",
    ),
    "other preset": (
        one_parameters_cell,
        lambda nb: set_parameters(nb, 'preset: str = "paper"  # which'),
        "has no `preset",
    ),
    "taken name": (parameters_stay, lambda nb: add_code(nb, "lr = 0.2"), "parameter lr again"),
    "lost name": (
        name_of_record_stays,
        lambda nb: add_code(nb, 'name = "05_x"\nfor name in "ab":\n    print(name)'),
        "takes name",
    ),
    "other number": (
        numbered_title,
        lambda nb: nb.cells[0].update(source="# 06 A title"),
        "'# 05 Title'",
    ),
    "code first": (numbered_title, lambda nb: nb.cells.insert(0, nb.cells.pop(3)), "'# 05 Title'"),
    "little prose": (
        prose_and_sizes,
        lambda nb: add_code(nb, "1", 2, prose=False),
        "3 prose cells and 4 code cells",
    ),
    "many cells": (prose_and_sizes, lambda nb: add_code(nb, "x = 1", 24), "26 code cells"),
    "long cell": (prose_and_sizes, lambda nb: add_code(nb, "x = 1\n" * 26), "cell of 26 lines"),
    "long cells": (prose_and_sizes, lambda nb: add_code(nb, "x = 1\n" * 9, 4), "of 9.0 lines"),
    "much code": (
        prose_and_sizes,
        lambda nb: (add_code(nb, "x = 1\n" * 24, 11), add_code(nb, "x = 1", 12)),
        "279 lines of code",
    ),
    "large file": (
        prose_and_sizes,
        lambda nb: nb.cells[0].update(source="# 05 A" + "h" * 200_000),
        "too large",
    ),
    "loose output": (stripped, lambda nb: set_outputs(nb, PRINTED), "keeps the output"),
    "kept error": (stripped, lambda nb: set_outputs(nb, RAISED, "keep_output"), "error KeyError"),
    "semicolon": (no_trailing_semicolon, lambda nb: add_code(nb, "x = 1\nx;\n"), "'x;'"),
    "path in code": (
        no_machine_paths,
        lambda nb: add_code(nb, 'open("/home/me/x")'),
        "the path /home/me",
    ),
    "path in output": (
        no_machine_paths,
        lambda nb: set_outputs(
            nb, nbformat.v4.new_output("stream", text="saved /tmp/x"), "keep_output"
        ),
        "the path /tmp/x",
    ),
    "dead link": (
        links_lead_on,
        lambda nb: nb.cells[2].update(source="[x](07_z.ipynb)"),
        "links to 07_z.ipynb",
    ),
    "dead picture": (
        links_lead_on,
        lambda nb: nb.cells[2].update(source='<img width="3" src="z.png">'),
        "links to z.png",
    ),
}


def _written(nb: NotebookNode, folder: Path) -> Book:
    (folder / "06_y.ipynb").touch()
    path = folder / "05_x.ipynb"
    path.write_text(json.dumps(nb), encoding="utf-8")
    return Book(path)


def _complaints(book: Book) -> dict[Callable, list[str]]:
    return {check: found for check in CHECKS if (found := check(book))}


def test_a_good_notebook_has_no_complaints(tmp_path):
    nb = good_notebook()
    set_outputs(nb, PRINTED, "keep_output")
    assert _complaints(_written(nb, tmp_path)) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_by_its_check_alone(fault, tmp_path):
    check, spoil, words = FAULTS[fault]
    nb = good_notebook()
    spoil(nb)
    complaints = _complaints(_written(nb, tmp_path))
    assert list(complaints) == [check]
    assert len(complaints[check]) == 1, complaints
    assert words in complaints[check][0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("05_x.cpu.yaml", "lr: 0.5\n", ""),
        ("05_x.cpu.yaml", "rate: 0.5\n", "no parameter 'rate'"),
        ("05_x.cpu.yaml", "lr: high\n", "lr must be"),
        ("07_z.cpu.yaml", "lr: 0.5\n", "no notebook"),
        ("grid.yaml", "notebook: 05_x\ngrid: {lr: [0.1, 0.2]}\n", ""),
        ("grid.yaml", "notebook: 05_x\ngrid: {rate: [0.1]}\n", "no parameter 'rate'"),
    ],
)
def test_faulty_presets_are_seen(tmp_path, name, content, words):
    _written(good_notebook(), tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "params" / name).write_text(content)
    complaints = preset_complaints(tmp_path / "params" / name)
    assert bool(complaints) == bool(words)
    assert all(words in complaint for complaint in complaints)


def test_the_list_has_every_notebook_by_its_own_title():
    entries = contents.contents()
    assert sorted(each.name for each in entries) == [path.stem for path in NOTEBOOKS]
    for each in entries:
        title = Book(each.path).cells("markdown")[0].source.splitlines()[0]
        assert title == f"# {each.name[:2]} {each.title}"
        assert each.family in contents.FAMILIES
        assert each.sentence.endswith(".")
    shelves = [list(contents.SHELVES).index(each.shelf) for each in entries]
    assert shelves == sorted(shelves)
    assert shelves.count(0) == 12


def test_notebooks_name_their_neighbours_in_the_list():
    names = [each.path.name for each in contents.contents()]
    for at, name in enumerate(names):
        wanted = {"previous": names[at - 1]} if at else {}
        wanted |= {"next": names[at + 1]} if at + 1 < len(names) else {}
        cells = Book(ROOT / "notebooks" / name).node.cells
        assert neighbours(cells[0]) == wanted, name
        assert neighbours(cells[-1]) == wanted, f"{name}, its end"


def neighbours(cell: NotebookNode) -> dict[str, str]:
    """Return which notebooks a cell calls previous and next."""
    found = re.findall(r"\*(previous|next):\* \[\d\d[^]]*\]\((\w+\.ipynb)\)", cell.source, re.I)
    return {which.lower(): name for which, name in found}

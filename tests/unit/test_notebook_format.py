"""What a reader of a notebook would not see: dead links, parameters that say something else, a
preset that comes too late, outputs of another run."""

import ast
import re
import runpy
from operator import itemgetter
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from alkit.command import contents
from alkit.lab import batch, parameters
from alkit.lab.parameters import read_yaml

ROOT = Path(__file__).resolve().parents[2]
COURSE, LARGEST, digest = itemgetter("COURSE", "LARGEST", "digest")(
    runpy.run_path(str(ROOT / "notebooks" / "outputs.py"))
)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMS = sorted((ROOT / "notebooks" / "params").glob("*.yaml"))
PAGES = ["README.md", "RESULTS.md", "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|<(?:img|a)\s[^>]*?(?:src|href)=[\"']([^\"']+)")
NEIGHBOUR = re.compile(r"\*(previous|next):\* \[\d\d[^]]*\]\((\w+\.ipynb)\)", re.IGNORECASE)

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path, kind: str | None = None) -> list[NotebookNode]:
    """Return the cells of a file that is valid, read without nbformat's repairs."""
    book = nbformat.v4.reads(path.read_text(encoding="utf-8"))
    nbformat.validate(book)
    return [cell for cell in book.cells if kind in (None, cell.cell_type)]


def tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def dead_links(text: str, folder: Path) -> list[str]:
    """Return the relative links of a markdown text that point to no file."""
    targets = [(one or other).split("#")[0] for one, other in LINK.findall(text)]
    local = [t for t in targets if t and not re.match(r"[a-z][a-z+.-]*:", t)]
    return [t for t in local if not (folder / t).exists()]


@each_notebook
def test_links_of_a_notebook_lead_on(path: Path):
    text = "\n".join(cell.source for cell in cells_of(path, "markdown"))
    assert dead_links(text, path.parent) == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_of_a_page_lead_on(page: Path | str):
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    assert dead_links(text, path.parent) == []
    named = re.findall(r"`((?:alkit|notebooks|tests)/[\w./]+\.py)`(?! of commit)", text)
    assert [each for each in named if not (ROOT / each).is_file()] == []


@each_notebook
def test_parameters_are_literals_of_one_cell_and_begin_with_smoke(path: Path):
    assert parameters.parameters(path)["preset"] == "smoke"  # which refuses what is no literal
    (cell,) = [cell for cell in cells_of(path, "code") if "parameters" in tags(cell)]
    for line in ast.parse(cell.source).body:  # a value must have its default's type
        kind, default = ast.unparse(line.annotation), ast.literal_eval(line.value)
        assert type(default).__name__ == kind.split("[")[0].split(" | ")[0] or default is None


@each_notebook
def test_no_other_cell_takes_a_parameter_s_name(path: Path):
    """A run records what its parameters hold."""
    others = [c for c in cells_of(path, "code") if "parameters" not in tags(c)]
    nodes = [
        node
        for cell in others
        if not cell.source.startswith("%")
        for node in ast.walk(ast.parse(cell.source))
    ]
    loops = [each.target for each in nodes if isinstance(each, ast.comprehension)]
    own = {id(node) for target in loops for node in ast.walk(target)}  # comprehensions keep these
    names = [n for n in nodes if isinstance(n, ast.Name) and id(n) not in own]
    taken = {each.id for each in names if isinstance(each.ctx, ast.Store)}
    assert taken & {*parameters.parameters(path)} == set()


@pytest.mark.parametrize(
    "path", [p for p in NOTEBOOKS if len(parameters.presets(p)) > 1], ids=lambda path: path.stem
)
def test_a_preset_is_taken_before_anything_uses_a_parameter(path: Path):
    code = cells_of(path, "code")
    at = next(i for i, cell in enumerate(code) if "parameters" in tags(cell))
    lines = [line for cell in code[at + 1 :] for line in ast.parse(cell.source).body]
    first = next(each for each in lines if not isinstance(each, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == f"take_preset(globals(), '{path.stem}')"


@pytest.mark.parametrize("file", PARAMS, ids=lambda file: file.name)
def test_a_preset_or_sweep_is_one_of_its_notebook(file: Path):
    """Each refuses a name that is no parameter, and a value of another type."""
    if "notebook" in read_yaml(file):
        assert batch.plan_sweep(file)
        return
    notebook, _, preset = file.stem.partition(".")
    parameters.preset_values(file.parent.parent / f"{notebook}.ipynb", preset)


@each_notebook
def test_outputs_are_the_course_s_and_of_its_cells(path: Path):
    """Others keep them where a tag says so."""
    kept = [cell for cell in cells_of(path, "code") if cell.outputs]
    outputs = [output for cell in kept for output in cell.outputs]
    assert [each.ename for each in outputs if each.output_type == "error"] == []
    if path.stem in COURSE:
        book = nbformat.read(path, as_version=4)
        assert book.metadata["alkit"]["outputs_of"] == digest(book.cells), "run make outputs"
        sizes = [len(each.get("data", {}).get("image/png", "")) * 3 / 4 for each in outputs]
        assert 0 < max(sizes) <= LARGEST
    else:
        assert [cell.source[:40] for cell in kept if "keep_output" not in tags(cell)] == []


def test_the_list_has_every_notebook_by_its_own_title():
    entries = contents()
    assert sorted(each["name"] for each in entries) == [path.stem for path in NOTEBOOKS]
    assert len({each["name"][:2] for each in entries}) == len(entries)
    for each in entries:
        name, title = each["name"], each["title"]
        head = cells_of(ROOT / "notebooks" / f"{name}.ipynb")[0].source.splitlines()[0]
        assert head == f"# {name[:2]} {title}"
        assert each["family"] in ("all", "al", "delayed", "split", "elastic", "dtp")
    shelves = [("course", "atlas", "lab").index(each["shelf"]) for each in entries]
    assert shelves == sorted(shelves)


def test_notebooks_name_their_neighbours_in_the_list():
    names = [f"{each['name']}.ipynb" for each in contents()]
    for at, name in enumerate(names):
        wanted = {"previous": names[at - 1]} if at else {}
        wanted |= {"next": names[at + 1]} if at + 1 < len(names) else {}
        cells = cells_of(ROOT / "notebooks" / name)
        for cell in (cells[0], cells[-1]):
            found = NEIGHBOUR.findall(cell.source)
            assert {which.lower(): book for which, book in found} == wanted, name

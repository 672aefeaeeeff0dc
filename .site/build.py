"""Build the site into build/site/html: sources from README, docs and executed notebooks; Sphinx.

    README's table of notebooks ──► contents ──► front page, families, previous and next
    notebooks ──► executed at smoke, in build/executed ──┐
    README, docs, CHANGELOG, figures, docstrings ────────┴──► build/site/source ──► html

Nothing is fetched. `--no-execute` takes what was executed before, and shows other notebooks without
outputs.
"""

import argparse
import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import papermill
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / ".site"
BUILD = ROOT / "build"
EXECUTED, SOURCE, HTML = BUILD / "executed", BUILD / "site" / "source", BUILD / "site" / "html"
FAMILIES = {
    "0": "All methods, and associated learning from the start",
    "1": "Associated learning: networks, codes, exits",
    "2": "Split learning and PipeLearn",
    "3": "Delayed gradients",
    "4": "Elastic pipelines: PipeTransformer",
    "5": "Target propagation",
    "9": "Results and template",
}
PROSE = {"CHANGELOG.md": "changes", "CONTRIBUTING.md": "contributing"}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
BESIDE = re.compile(r"\]\((\w+)\.ipynb\)")  # a notebook's link to another
FIGURE = re.compile(r"!\[([^\]]*)\]\(\.\./figures/")
ROW = re.compile(r"^\| (\[.+?) \| (.+) \| (.+?) \|$", re.MULTILINE)
DARK = {  # fills and strokes of the house's figures, by day and by night
    "fill: #ffffff": "fill: #14181e",
    "fill: #262626": "fill: #e0e0e0",
    "stroke: #262626": "stroke: #e0e0e0",
    "stroke: #cccccc": "stroke: #48566b",
    "fill: #595959": "fill: #9aa4b2",
    "fill: #d9d9d9": "fill: #2f3a47",
    "stroke: #595959": "stroke: #9aa4b2",
}


@dataclass(frozen=True)
class Entry:
    """A notebook in the table of contents."""

    name: str
    title: str
    shows: str
    takes: str

    @property
    def family(self) -> str:
        """Its decade."""
        return self.name[0]

    @property
    def path(self) -> Path:
        """Its file."""
        return ROOT / "notebooks" / f"{self.name}.ipynb"


def contents() -> list[Entry]:
    """Return the notebooks in README's order; a row may name several."""
    found = []
    page = sections((ROOT / "README.md").read_text(encoding="utf-8"))["Notebooks"]
    for names, shows, takes in ROW.findall(page):
        for name in re.findall(r"\(notebooks/(\w+)\.ipynb\)", names):
            book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
            title = book.cells[0].source.splitlines()[0].removeprefix("# ")
            found.append(Entry(name, title, shows, takes))
    return found


# ---- notebooks -----------------------------------------------------------------------------------


@cache
def state() -> str:
    """Return a hash of all that outputs depend on beside the notebook itself."""
    parts = ("alkit/**/*", "notebooks/studies/*.py", "notebooks/results/*.json", "environment.yml")
    files = sorted(p for part in parts for p in ROOT.glob(part) if p.suffix not in (".pyc", ""))
    return _digest(path.read_bytes() for path in files)


def executed(entry: Entry) -> Path:
    """Return where its executed copy lies, or would lie."""
    key = _digest([entry.path.read_bytes(), state().encode()])
    return EXECUTED / f"{entry.name}.{key[:16]}.ipynb"


def execute(entry: Entry) -> str:
    """Execute a notebook at smoke, if that was not done before; return its name."""
    made = executed(entry)
    if not made.exists():
        for old in EXECUTED.glob(f"{entry.name}.*"):
            old.unlink()
        part = made.with_suffix(".partial.ipynb")
        papermill.execute_notebook(
            entry.path, part, cwd=entry.path.parent, progress_bar=False, execution_timeout=600
        )
        part.replace(made)
    return entry.name


def write_notebook(entry: Entry, repository: str) -> None:
    """Write the page of a notebook, and the stripped file that it offers."""
    folder = SOURCE / "notebooks"
    source = executed(entry) if executed(entry).exists() else entry.path
    book = nbformat.read(source, as_version=4)
    book.metadata = {"kernelspec": book.metadata["kernelspec"]}
    before = ""
    for cell in book.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata = {"tags": tags} if tags else {}
        if cell.cell_type == "markdown":
            before = cell.source = relinked(cell.source, entry.path)
            continue
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            cell.metadata["mystnb"] = {"image": {"alt": alternative(before)}}
        for output in cell.outputs:
            if said := output.get("data", {}).get("text/markdown"):  # rendered where it stands
                output.data["text/markdown"] = BESIDE.sub(r"](\1.html)", said)
    book.cells = [
        cell for cell in book.cells if "injected-parameters" not in cell.metadata.get("tags", [])
    ]
    book.cells.insert(1, nbformat.v4.new_markdown_cell(launch(entry, repository)))
    nbformat.write(book, folder / f"{entry.name}.ipynb")
    shutil.copy(entry.path, folder / f"{entry.name}.clean.ipynb")


def alternative(prose: str) -> str:
    """Return what the words before a figure say of it: its last paragraph, without marks."""
    paragraphs = [part for part in re.split(r"\n\s*\n", prose) if not part.startswith(("#", "```"))]
    plain = re.sub(r"[*_`$]|\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[-1] if paragraphs else "")
    return " ".join(plain.split())[:300] or "a figure of this notebook"


def launch(entry: Entry, repository: str) -> str:
    """Return the links by which a notebook is run elsewhere."""
    said = f"Run it: {{download}}`the notebook <{entry.name}.clean.ipynb>`"
    if not repository:
        return f"{said}."
    place = f"{repository}/blob/main/notebooks/{entry.name}.ipynb"
    colab = f"https://colab.research.google.com/github/{place}"
    binder = f"https://mybinder.org/v2/gh/{repository}/main?labpath=notebooks/{entry.name}.ipynb"
    return f"{said}, or at [Colab]({colab}), [Binder]({binder})."


# ---- prose ---------------------------------------------------------------------------------------


def sections(text: str) -> dict[str, str]:
    """Cut a page at its `## ` headings; what stands before the first has the key ""."""
    found, title, fenced = {"": ""}, "", False
    for line in text.splitlines(keepends=True):
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("## ") and not fenced:
            title = line[3:].strip()
            found[title] = ""
        else:
            found[title] += line
    return found


def relinked(text: str, origin: Path) -> str:
    """Rewrite a text's links from files of the repository to pages; what has no page is a word."""

    def other(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if re.match(r"[a-z][a-z+.-]*:|#", target):
            return found[0]
        path, _, place = target.partition("#")
        page = page_of((origin.parent / path).resolve().relative_to(ROOT), bool(picture))
        if page is None:
            return f"`{words.strip('`')}`" if not picture else words
        return f"{picture}[{words}]({page}{'#' + place if place else ''})"

    return LINK.sub(other, text)


def page_of(path: Path, picture: bool = False) -> str | None:
    """Return the page of a file of the repository, from the site's root; None if it has none."""
    text = path.as_posix()
    if picture or path.parts[0] == "figures" and path.suffix in (".svg", ".png"):
        # SVG follows the page's mode
        vector = path.with_suffix(".svg")
        return f"/{vector if (ROOT / vector).exists() else path}"
    if path.suffix == ".ipynb" and (ROOT / path).exists():
        return f"/{text}"
    if text == "README.md":
        return "/guide/index.md"
    if text in PROSE:
        return f"/guide/{PROSE[text]}.md"
    if path.parts[0] == "docs" and path.suffix == ".md":
        return f"/guide/{path.relative_to('docs')}"
    if path.parts[0] == "alkit":
        module = [*path.parts[:-1]] + (
            [] if path.stem == "__init__" or not path.suffix else [path.stem]
        )
        return f"/autoapi/{'/'.join(module)}/index.rst"
    return None


def slug(title: str) -> str:
    """Return a heading as a file name."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def write_guide() -> None:
    """Write a page a section of README, and those of docs."""
    readme, folder = ROOT / "README.md", SOURCE / "guide"
    folder.mkdir(parents=True)
    parts = sections(readme.read_text(encoding="utf-8"))
    pages = []
    for title, body in parts.items():
        if title and title != "Notebooks":
            named = {"Words": "Glossary", "Sources": "References"}.get(title, title)
            _write(folder / f"{slug(named)}.md", f"# {named}\n\n{relinked(body, readme)}")
            pages.append(slug(named))
    tasks = sorted((ROOT / "docs" / "tasks").glob("*.md"))
    for path in (*tasks, *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8")
        _write(folder / path.relative_to(ROOT / "docs"), relinked(text, path))
    for file, page in PROSE.items():
        text = (ROOT / file).read_text(encoding="utf-8")
        _write(folder / f"{page}.md", relinked(text, ROOT / file))
    index = f"{relinked(parts[''], readme)}\n"
    index += toctree(pages, "Guide") + toctree([f"tasks/{path.stem}" for path in tasks], "Tasks")
    index += toctree(["cluster", "devices", *PROSE.values()], "More")
    _write(folder / "index.md", index.replace("# alkit", "# Guide", 1))


def toctree(pages: Iterable[str], caption: str = "", hidden: bool = True) -> str:
    """Return a list of pages for the sidebar."""
    options = [f":caption: {caption}"] * bool(caption) + [":hidden:"] * hidden + [":maxdepth: 1"]
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def write_fronts(entries: list[Entry]) -> None:
    """Write the front page and that of the notebooks: a card a notebook, by family."""
    cards, trees, plain = [], [], []
    for key, name in FAMILIES.items():
        own = [entry for entry in entries if entry.family == key]
        cards.append(
            f"## {name}\n\n::::{{grid}} 1 2 3 3\n:gutter: 3\n\n"
            + "".join(map(card, own))
            + "::::\n"
        )
        trees.append(toctree([entry.name for entry in own], name))
        lines = [
            f"- [{e.title}]({e.name}.ipynb): {relinked(e.shows, ROOT / 'README.md')}" for e in own
        ]
        plain.append(f"## {name}\n\n" + "\n".join(lines) + "\n")
    head = "---\nhtml_theme.sidebar_secondary.remove: true\n---\n\n# alkit\n\n"
    intro = sections((ROOT / "README.md").read_text(encoding="utf-8"))[""].split("\n\n")
    words = relinked("\n\n".join(intro[1:3]), ROOT / "README.md")
    top = "![Ten methods on one axis of time](/figures/00_all_methods.svg)\n\n"
    hubs = toctree(["notebooks/index", "guide/index", "dashboard", "API <autoapi/alkit/index>"])
    _write(SOURCE / "index.md", head + words + "\n\n" + top + "\n".join(cards) + hubs)
    _write(SOURCE / "notebooks" / "index.md", "# Notebooks\n\n" + "\n".join(plain) + "".join(trees))


def card(entry: Entry) -> str:
    """Return a card of the front page: its figure, title, what it shows."""
    figure, alt = picture(entry)
    lines = [
        f":::{{grid-item-card}} {entry.title}",
        f":link: /notebooks/{entry.name}",
        ":link-type: doc",
    ]
    if figure:
        lines += [f":img-top: {figure}", f":img-alt: {alt}"]
    shows = alt or LINK.sub(r"\2", entry.shows)
    return "\n".join([*lines, "", shows, ":::", "", ""])


def picture(entry: Entry) -> tuple[str, str]:
    """Return a notebook's figure and what it says: that of its first cell, or its last output."""
    if shown := FIGURE.search(nbformat.read(entry.path, as_version=4).cells[0].source):
        return f"/figures/{entry.name}.svg", shown[1]
    if not executed(entry).exists():
        return "", ""
    before, found = "", ("", "")
    for cell in nbformat.read(executed(entry), as_version=4).cells:
        if cell.cell_type == "markdown":
            before = cell.source
            continue
        for output in cell.outputs:
            if data := output.get("data", {}).get("image/png"):
                name = f"/figures/cards/{entry.name}.png"
                target = SOURCE / name[1:]
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(base64.b64decode(data))
                found = name, alternative(before)
    return found


# ---- the rest ------------------------------------------------------------------------------------


def write_figures() -> None:
    """Copy figures; an SVG gets the colours of the night."""
    shutil.copytree(ROOT / "figures", SOURCE / "figures", ignore=shutil.ignore_patterns("*.md"))
    rules = " ".join(f'[style*="{day}"]{{{night}!important}}' for day, night in DARK.items())
    for path in (SOURCE / "figures").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        style = f"<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>"
        path.write_text(re.sub(r"(<svg[^>]*>)", rf"\1{style}", text, count=1), encoding="utf-8")


def write_dashboard() -> None:
    """Write the page of schedules; its data is a script, for a page from disk may not fetch."""
    sys.path.insert(0, str(SITE))
    from schedules import graphs

    data = SOURCE / "_data"
    data.mkdir()
    text = json.dumps(graphs(), separators=(",", ":"))
    (data / "schedules_data.js").write_text(f"const ALKIT_SCHEDULES = {text};\n", encoding="utf-8")
    shutil.copy(SITE / "dashboard.md", SOURCE / "dashboard.md")


class _Links(HTMLParser):
    """Gathers what a page links to and the places in it that can be linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Look at a tag."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(unquote(value))
            if name == "id" and value:
                self.places.add(value)


def dead_links(folder: Path) -> list[str]:
    """Return the links within a built site that lead nowhere, as sentences."""
    pages = {}
    for path in (each for each in folder.rglob("*.html") if "_static" not in each.parts):
        pages[path] = _Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = []
    for path, page in pages.items():
        for target in page.targets:
            if re.match(r"[a-z][a-z+.-]*:", target):
                continue
            file, _, place = target.partition("#")
            there = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not there.exists():
                found.append(f"{path.relative_to(folder)} links to {target}, which is not there")
            elif place and there in pages and place not in pages[there].places:
                found.append(f"{path.relative_to(folder)} links to {target}: no such place")
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(part)
    return made.hexdigest()


def main() -> int:
    """Build; a warning of Sphinx or a link that leads nowhere is a failure."""
    parser = argparse.ArgumentParser(description="Build the site into build/site/html, offline.")
    parser.add_argument("--no-execute", action="store_true", help="take what was executed before")
    parser.add_argument("--repository", default="", help="OWNER/NAME on GitHub, for launch links")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at a time")
    asked = parser.parse_args()
    entries = contents()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    if not asked.no_execute:
        with ProcessPoolExecutor(asked.jobs) as pool:
            done = pool.map(execute, entries)
            list(tqdm(done, desc="notebooks", total=len(entries)))
    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    write_figures()
    write_guide()
    (SOURCE / "notebooks").mkdir()
    for entry in entries:
        write_notebook(entry, asked.repository)
    write_fronts(entries)
    write_dashboard()
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "2"]
    command += ["-c", str(SITE), "-d", str(BUILD / "site" / "doctrees"), str(SOURCE), str(HTML)]
    status = subprocess.run(command).returncode
    broken = [] if status else dead_links(HTML)
    print(*broken, sep="\n")
    if not status and not broken:
        print(f"The site: {HTML / 'index.html'}")
    return status or bool(broken)


if __name__ == "__main__":
    sys.exit(main())

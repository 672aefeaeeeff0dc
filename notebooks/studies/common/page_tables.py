"""Put tables that runs have written into a page that people have written."""

import re
from pathlib import Path

import nbformat
import pandas as pd
from nbformat import NotebookNode

from alkit.data.files import replacing
from alkit.records.contents import Entry, contents

LINKS = r"(?: · )?\*previous:\* \[[^]]*\]\(\w+\.ipynb\)|(?: · )?\*next:\* \[[^]]*\]\(\w+\.ipynb\)"


def replace_section(page: str | Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- NAME -->` and `<!-- /NAME -->` in a Markdown page,
    atomically.

    Raises:
        ValueError: the page has not exactly one such pair of marks.
    """
    page = Path(page)
    content = page.read_text(encoding="utf-8")
    opening, closing = f"<!-- {name} -->", f"<!-- /{name} -->"
    if content.count(opening) != 1 or content.count(closing) != 1:
        raise ValueError(f"{page.name} needs the marks {opening} and {closing}, once each")
    head, rest = content.split(opening)
    _, tail = rest.split(closing)
    with replacing(page) as partial:
        partial.write_text(f"{head}{opening}\n{text.strip()}\n{closing}{tail}", encoding="utf-8")


def put_figure(notebook: str | Path, told: str) -> None:
    """Show a notebook's figure of `figures/` in its first cell, in the place of what it showed.

    Args:
        told: what stands for it where it can't be seen.
    """
    notebook = Path(notebook)
    book = nbformat.read(notebook, as_version=4)
    line = f"![{told}](../figures/{notebook.stem}.png)"
    parts = book.cells[0].source.split("\n\n")
    kept = [part for part in parts if not part.startswith("![")]
    book.cells[0].source = "\n\n".join([*kept, line])
    _write(book, notebook)


def link_neighbours() -> None:
    """Let every notebook name its neighbours in `notebooks/index.yaml`, first and last."""
    entries = contents()
    for at, entry in enumerate(entries):
        found = {"previous": entries[at - 1]} if at else {}
        found |= {"next": entries[at + 1]} if at + 1 < len(entries) else {}
        book = nbformat.read(entry.path, as_version=4)
        for cell, named in ((book.cells[0], False), (book.cells[-1], True)):
            cell.source = linked(cell.source, found, named)
        _write(book, entry.path)


def linked(source: str, found: dict[str, Entry], named: bool) -> str:
    """Return a cell with links to its neighbours in the line that had them.

    Args:
        found: "previous" and "next", where there are such.
        named: with the title of the next one, and a capital at the beginning of the line.
    """
    lines = source.split("\n")
    places = [i for i, line in enumerate(lines) if re.search(LINKS, line, re.I)]
    if len(places) != 1:
        raise ValueError(f"{len(places)} lines with *previous* or *next* where one is needed")
    kept = re.sub(LINKS, "", lines[places[0]], flags=re.I)
    links = " · ".join(_link(which, each, named) for which, each in found.items())
    if named:
        lines[places[0]] = f"*{links[1].upper()}{links[2:]}{kept}"
    else:
        lines[places[0]] = f"{kept} · {links}"
    return "\n".join(lines)


def _link(which: str, entry: Entry, named: bool) -> str:
    title = f" {entry.title.partition(':')[0]}" if named and which == "next" else ""
    return f"*{which}:* [{entry.name[:2]}{title}]({entry.name}.ipynb)"


def _write(book: NotebookNode, notebook: Path) -> None:
    """Write a notebook, atomically, if it has changed."""
    if book != nbformat.read(notebook, as_version=4):
        with replacing(notebook) as partial:
            nbformat.write(book, partial)


def markdown(frame: pd.DataFrame) -> str:
    """Return a table in Markdown; numbers to the right, None and NaN as an empty cell.

    Without a row it is a sentence.
    """
    if frame.empty:
        return "No runs yet."
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    rows = [["" if pd.isna(v) else str(v) for v in row] for row in frame.itertuples(index=False)]
    lines = [list(map(str, frame.columns)), ["---:" if n else "---" for n in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

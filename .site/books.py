"""A notebook's page: its executed copy, with links, alt texts and where to run it."""

import re
import shutil
from pathlib import Path

import nbformat
from entries import SOURCE, executed
from links import relinked
from nbformat import NotebookNode
from night import by_night

from alkit.lab.contents import Entry

__all__ = ["alternative", "write_notebook"]

DRAWING = re.compile(r"^```(?:text)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NARROW = 70  # columns that fit a page as they are


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
            before = cell.source = fitted(relinked(cell.source, entry.path))
        else:
            prepare(cell, alternative(before), entry.path)
    book.cells = [
        cell for cell in book.cells if "injected-parameters" not in cell.metadata.get("tags", [])
    ]
    book.cells.insert(1, nbformat.v4.new_markdown_cell(launch(entry, repository)))
    nbformat.write(book, folder / f"{entry.name}.ipynb")
    shutil.copy(entry.path, folder / f"{entry.name}.clean.ipynb")


def prepare(cell: NotebookNode, told: str, origin: Path) -> None:
    """Make a cell's outputs fit the page: by night, on a phone, and for who can't see them."""
    found = [output.get("data", {}) for output in cell.outputs]
    if any("image/png" in data or "image/svg+xml" in data for data in found):
        cell.metadata["mystnb"] = {"image": {"alt": told}}
    for data in found:
        if said := data.get("text/markdown"):
            data["text/markdown"] = relinked(said, origin)
        if drawn := data.get("image/svg+xml"):
            data["image/svg+xml"] = by_night(drawn)
    texts = [output.text for output in cell.outputs if output.output_type == "stream"]
    if texts and max(len(text.splitlines()) for text in texts) == 1:  # a line, not a table
        cell.metadata["tags"] = [*cell.metadata.get("tags", []), "wrapped"]


def fitted(prose: str) -> str:
    """Give a drawing in text letters that are small enough for the page."""

    def small(found: re.Match[str]) -> str:
        columns = max(map(len, found[1].splitlines()), default=0)
        if columns <= NARROW:
            return f"```text\n{found[1]}```"
        return f"```{{code-block}} text\n:class: wide-{-(-columns // 10) * 10}\n\n{found[1]}```"

    return DRAWING.sub(small, prose)


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

"""Put tables that runs have written into a page that people have written."""

from pathlib import Path

import nbformat
import pandas as pd

from alkit.data.files import replacing

__all__ = ["markdown", "put_figure", "replace_section"]


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
    source = "\n\n".join([*kept, line])
    if source != book.cells[0].source:
        book.cells[0].source = source
        with replacing(notebook) as partial:
            nbformat.write(book, partial)


def markdown(frame: pd.DataFrame) -> str:
    """Return a table in Markdown; numbers to the right, None and NaN as an empty cell."""
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    rows = [["" if pd.isna(v) else str(v) for v in row] for row in frame.itertuples(index=False)]
    lines = [list(map(str, frame.columns)), ["---:" if n else "---" for n in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

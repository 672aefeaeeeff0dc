"""Put tables that runs have written into a page that people have written."""

from pathlib import Path

import pandas as pd

from alkit.data.files import replacing

__all__ = ["markdown", "replace_section"]


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


def markdown(frame: pd.DataFrame) -> str:
    """Return a table in Markdown; numbers to the right, None and NaN as an empty cell."""
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    rows = [["" if pd.isna(v) else str(v) for v in row] for row in frame.itertuples(index=False)]
    lines = [list(map(str, frame.columns)), ["---:" if n else "---" for n in numeric], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Read files of separated values; every complaint names file and line."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

__all__ = ["Table", "read_csv"]


def read_csv(
    path: Path,
    text: str | int = "text",
    label: str | int = "label",
    delimiter: str = ",",
    header: bool = True,
) -> tuple[list[str], list[str]]:
    """Return the texts and the labels, as written, of a table.

    Args:
        text, label: names of the columns; their numbers, from 0, where there is no header.
    Raises:
        ValueError: no such column, a row of another width, no row, no UTF-8; names file and line.
    """
    table = Table(str(path), path.read_bytes(), delimiter=delimiter, header=header)
    rows = list(table.rows(text, label))
    return [row[1] for row in rows], [row[2] for row in rows]


class Table:
    """The rows of a file of separated values.

    Args:
        source: name of the file, for messages.
        width: columns that each row must have; None for as many as the first has.
    """

    def __init__(
        self,
        source: str,
        content: bytes,
        *,
        delimiter: str = ",",
        quoting: Literal[0, 1, 2, 3] = csv.QUOTE_MINIMAL,
        header: bool = True,
        width: int | None = None,
    ) -> None:
        self.source, self.header, self.width = source, header, width
        if not content.strip():
            raise ValueError(f"{source}: empty")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise ValueError(f"{source}, line {line}: no UTF-8 ({error.reason})") from error
        lines = io.StringIO(text, newline="")
        # strict: a quote that is never closed would swallow the rest of the file
        self.reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        self.names = (self._next() if header else None) or []

    def rows(self, *columns: str | int) -> Iterator[list[str]]:
        """Yield "file, line n" and the wanted columns of each row."""
        places = [self._place(column) for column in columns]
        row: list[str] | None = None
        while (row := self._next()) is not None:
            yield [f"{self.source}, line {self.reader.line_num}", *(row[p] for p in places)]
        if self.reader.line_num <= 1 and self.header:
            raise ValueError(f"{self.source}: no row follows the header")

    def _next(self) -> list[str] | None:
        try:
            row = next(self.reader, None)
        except csv.Error as error:
            raise ValueError(f"{self.source}, line {self.reader.line_num}: {error}") from error
        if row is not None:
            self.width = len(row) if self.width is None else self.width
            if len(row) != self.width:
                raise ValueError(
                    f"{self.source}, line {self.reader.line_num}: {len(row)} columns,"
                    f" expected {self.width}"
                )
        return row

    def _place(self, column: str | int) -> int:
        if isinstance(column, int):
            return column
        if column not in self.names:
            raise ValueError(
                f"{self.source}, line 1: no column {column!r}; there are {', '.join(self.names)}"
            )
        return self.names.index(column)

"""Titles of figures: short, and no stronger than what is drawn.

A title has at most twelve words, names no maximum, and a winner only where ranges part. Its numbers
are made of values that the figure draws:

    title(ax, "The pipeline takes {share:.2f} of AL's time", share=ratio(12.5, 25.0))

`ratio` keeps its two values, so a test can look for both in the picture.
"""

import re
import statistics
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from alkit.data.extras import extra

with extra("notebooks", "a figure"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

WORDS = 12
MAXIMA = re.compile(r"\b(up to|down to|at most|at best|at least|as much as|maxim\w+)\b", re.I)
WINNERS = re.compile(r"\b(fastest|slowest|best|first|least|most|wins?|winner|leads?)\b", re.I)


@dataclass(frozen=True)
class Number:
    """A number of a title.

    Attributes:
        how: makes it of the drawn values.
        drawn: values that the figure draws.
    """

    how: Callable[..., float]
    drawn: tuple[float, ...]

    def __format__(self, form: str) -> str:
        return format(self.how(*self.drawn), form)


def of(how: Callable[..., float], *drawn: float) -> Number:
    """Return a number made of drawn values in any way: a count, a mean, a share."""
    return Number(how, tuple(map(float, drawn)))


def value(drawn: float) -> Number:
    """Return a drawn value as it is."""
    return of(float, drawn)


def ratio(over: float, under: float) -> Number:
    """Return one drawn value over another."""
    return of(lambda a, b: a / b, over, under)


def difference(more: float, less: float) -> Number:
    """Return one drawn value minus another."""
    return of(lambda a, b: a - b, more, less)


def median(*drawn: float) -> Number:
    """Return the median of drawn values."""
    return of(lambda *each: statistics.median(each), *drawn)


def median_ratio(over: Sequence[float], under: Sequence[float]) -> Number:
    """Return the median of drawn values over others, pair by pair."""
    half = len(over)
    return of(
        lambda *each: statistics.median(
            a / b for a, b in zip(each[:half], each[half:], strict=True)
        ),
        *over,
        *under,
    )


def count(*drawn: float) -> Number:
    """Return how many drawn values there are: of those that a verdict picked, say."""
    return of(lambda *each: len(each), *drawn)


def title(
    where: Axes | Figure,
    words: str,
    apart: tuple[float, float] | None = None,
    **numbers: Number | str,
) -> None:
    """Give a figure, or its one chart, a title that states what it draws; the last thing to do.

    It is broken into lines, for a title that is wider than its figure widens that in a notebook.

    Args:
        words: with `{name}` or `{name:format}` for each of the numbers or names; without any they
            stand as they are.
        apart: where the words name a winner: two ends of ranges, lower first, that show it.

    A title that is too long, or names a maximum or a winner that no range shows, is drawn all the
    same, with a warning: a run's results are worth more than its title. Tests see the warning.
    """
    text = words.format(**numbers) if numbers else words
    if said := complaint(text, apart):
        warnings.warn(f"the title {text!r} {said}", stacklevel=2)
    figure = where.get_figure(root=True) if isinstance(where, Axes) else where
    assert figure is not None
    kept = tuple(each for each in numbers.values() if isinstance(each, Number))
    figure.__dict__.setdefault("titled", []).append((words, kept))
    if isinstance(where, Axes):
        made = where.set_title(text)
        figure.draw_without_rendering()  # only then its left end is known
        _break(made, figure.bbox.width - where.bbox.x0)
    else:
        made = where.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")
        _break(made, 0.98 * figure.bbox.width)


def _break(text: Text, most: float) -> None:
    wide = text.get_window_extent().width
    if wide > most:
        words = text.get_text()
        text.set_text(textwrap.fill(words, int(0.95 * len(words) * most / wide)))


def panel(ax: Axes, name: str) -> None:
    """Name one of several charts by its data set or method; findings stand in the title."""
    if said := complaint(name, None):
        warnings.warn(f"the name {name!r} {said}", stacklevel=2)
    ax.set_title(name)


def titled(figure: Figure) -> list[tuple[str, tuple[Number, ...]]]:
    """Return the words of a figure's titles, numbers not yet filled in, and these numbers."""
    return figure.__dict__.get("titled", [])


def complaint(text: str, apart: tuple[float, float] | None = None) -> str:
    """Return what is wrong with a title; "" if nothing is."""
    words = [word for word in text.split() if re.search(r"\w", word)]
    if len(words) > WORDS:
        return f"has {len(words)} words: say it in {WORDS}"
    if found := MAXIMA.search(text):
        return f"says {found[0]!r}: name the condition, or a median"
    if (found := WINNERS.search(text)) and apart is None:
        return f"says {found[0]!r}: give apart=, the ends of the two ranges"
    if apart is not None and not apart[0] < apart[1]:
        return f"names a winner, but the ranges do not part: {apart[0]:g} and {apart[1]:g}"
    return ""

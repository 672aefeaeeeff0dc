"""What a row of results may hold: a metric by name, plain values, whole seeds and counts."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any


def check_row(row: Mapping[str, Any]) -> None:
    """See that a row has a metric and a value of its kind.

    Raises:
        ValueError, TypeError: names the field and what is wrong with it.
    """
    metric, value = row["metric"], row["value"]
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"metric is {metric!r}: it must be a name")
    words = not row.get("unit")
    for one in _leaves(value):
        if (words and isinstance(one, bool | str)) or (is_number(one) and math.isfinite(one)):
            continue
        said = repr(value)[:60]
        raise ValueError(f"{metric} is {said}: it must be a number, or a text without a unit")
    for name in ("seed", "n"):
        whole(row.get(name), name)


def _leaves(value: Any) -> Iterator[Any]:
    if not isinstance(value, list):
        yield value
    else:
        for one in value:
            yield from _leaves(one)


def plain(value: Any, name: str) -> Any:
    """Return the value as what JSON can hold, or say why it cannot be recorded."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, list | tuple):
        return [plain(item, name) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name!r} is {value}: record finite numbers only, or a word in its place")
    if isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name!r} is a {type(value).__name__}: record a number, a string or a list of them"
        " (.item() or .tolist() makes one)"
    )


def whole(value: Any, name: str) -> int | None:
    """Return a whole number, or None for none."""
    made = None if value is None else plain(value, name)
    if made is None or (isinstance(made, int) and not isinstance(made, bool)):
        return made
    raise TypeError(f"{name!r} is {value!r}: give a whole number, or leave it out")


def is_number(value: Any) -> bool:
    """Tell numbers from switches and texts."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def safe_name(text: str, what: str) -> str:
    """Return a name that becomes part of a file name, or refuse one that would lead elsewhere."""
    if not re.fullmatch(r"\w[\w.=+,-]*", text):
        raise ValueError(f"{what} {text!r}: use letters, digits and - _ . = + , only")
    return text

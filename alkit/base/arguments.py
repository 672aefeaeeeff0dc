"""Check the arguments of a call, with messages that name allowed values; describe values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from numbers import Real
from typing import Any

import numpy as np


def given(value: Any) -> str:
    """Describe a value in a few words that fit into a message or a `repr`."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype} of {tuple(value.shape)}"
    if isinstance(value, type):
        return f"{value.__name__} (a class)"
    if isinstance(value, Mapping | list | tuple) and len(repr(value)) > 80:
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 80 and "\n" not in text else type(value).__name__


class Brief:
    """A dataclass whose `repr` is one line, whatever its tensors and tables hold."""

    def __repr__(self) -> str:
        names = (field.name for field in fields(self))  # type: ignore[arg-type]
        shown = (f"{name}={given(getattr(self, name))}" for name in names)
        return f"{type(self).__name__}({', '.join(shown)})"


def as_plain(value: Any) -> Any:
    """Return a number of numpy as a Python number; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_real(name: str, value: Any, *, zero: bool = False) -> None:
    """Accept only a finite number above 0, or from 0 up; None stands for a default."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {given(value)}: it must be a number")
    if not 0 <= float(value) < math.inf or (value == 0 and not zero):
        least = "not negative" if zero else "positive"
        raise ValueError(f"{name} is {value}: it must be finite and {least}")


def check_whole(**numbers: Any) -> None:
    """Accept only whole numbers from 1 up; None stands for a default."""
    for name, value in numbers.items():
        if type(value) not in (int, type(None)):
            raise TypeError(f"{name} is {given(value)}: it must be a whole number")
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}: it must be at least 1")


def check_settings(names: Iterable[str], known: Sequence[str], others: Iterable[str]) -> None:
    """Refuse unknown settings; say which known one, or which other name, is spelt alike."""
    if unknown := [name for name in names if name not in known]:
        said = f"unknown settings {', '.join(unknown)}{meant(unknown[0], [*known, *others])}"
        raise TypeError(f"{said}: there are {', '.join(known)}")


def meant(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'name'?)" where a name is close to a known one, else ""."""
    found = get_close_matches(str(name), list(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""

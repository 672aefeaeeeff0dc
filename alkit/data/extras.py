"""Packages that only some users need, and what to say where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager


class ExtraMissing(ImportError):
    """A package that an extra of alkit brings is not installed; says which extra."""


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Import packages of an extra inside of this.

    Args:
        name: of the extra, see `pyproject.toml`.
        what: needs them, as the message is to call it.
    Raises:
        ExtraMissing: one of them is not installed. An installed one that is broken says so itself.

    Example:
        >>> with extra("vision", "a ResNet-50"):
        ...     from torchvision import models
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ExtraMissing(
            f"{what} needs {error.name}, which is not installed: pip install alkit[{name}]"
        ) from error

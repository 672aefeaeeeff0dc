"""Settings by name of associated learning, local rules and backprop."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from alkit.al.bridges import Pool
from alkit.al.recipes import Recipe
from alkit.al.rules import Rule
from alkit.engine.compiled import Compile, check_compile


@dataclass(frozen=True)
class Settings:
    """Of all of them.

    Attributes:
        pool: see `alkit.to_al`.
        num_classes: scores of a head that is made, for a network without one.
        compile: "steps", see `alkit.train_epoch`.
    """

    pool: Pool | Sequence[Pool] | None = None
    num_classes: int | None = None
    compile: Compile = False

    def __post_init__(self) -> None:
        check_compile(self.compile)
        if isinstance(cuts := getattr(self, "cuts", None), str | int):
            raise TypeError(f"cuts is {cuts!r}: give a list of layer numbers")

    def making(self) -> dict[str, Any]:
        """Return what makes a model of blocks, where it was given."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        others = ("num_classes", "compile", "cuts")
        return {n: value for n, value in found.items() if value is not None and n not in others}


@dataclass(frozen=True)
class Associated(Settings):
    """Of al, al_m, al_fm and al_pipeline.

    Attributes:
        recipe, code_dim, read: see `alkit.to_al`.
        cuts: of the pipeline: the first layer of each worker but the first; by default workers are
            free, and ranks hold as many layers each.
    """

    recipe: str | Recipe | None = None
    code_dim: int | None = None
    read: str | None = None
    cuts: Sequence[int] | None = None


@dataclass(frozen=True)
class Local(Settings):
    """Of local and local_pipeline.

    Attributes:
        rule, read: see `alkit.to_local`.
        cuts: as in `Associated`.
    """

    rule: str | Rule | None = None
    read: str | None = None
    cuts: Sequence[int] | None = None


@dataclass(frozen=True)
class Backprop(Settings):
    """Of bp.

    Attributes:
        head, channels_last: see `alkit.to_bp`.
        clip: largest norm of all gradients together.
    """

    head: nn.Module | None = None
    channels_last: bool | None = None
    clip: float | None = None

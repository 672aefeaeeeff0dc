"""Where a rank stands: in pipelines side by side, whose layout changes while the job lives.

    rank      0      1      2      3          2 stages x 2 replicas
    replica   0      0      1      1          a row: the stages of a replica
    stage     0      1      0      1          a column: the replicas of a stage

The group of all ranks, for decisions, lives as long as the job; rows and columns, for gradients,
are made anew whenever the layout changes.
"""

from collections.abc import Callable

from torch import Tensor

from alkit.elastic.layout import Layout
from alkit.engine.group import Group


class World(Group):
    """This rank among all, and its place in the layout.

    Attributes:
        reduce: mean of a tensor over the replicas of this rank's stage; None with one.
        add_up: sum of a number over the stages of this rank's replica; None with one.
    """

    replica, stage = 0, 0
    reduce: Callable[[Tensor], Tensor] | None = None
    add_up: Callable[[float], float] | None = None
    shape: tuple[int, int] | None = None

    def regroup(self, layout: Layout) -> None:
        """Leave the rows and columns, and make those of a new layout; all ranks call it."""
        if self.ranks == 1 or self.shape == (layout.stages, layout.replicas):
            return
        self.close()
        self.shape = layout.stages, layout.replicas
        self.replica, self.stage = divmod(self.rank, layout.stages)
        rows = [
            [r * layout.stages + s for s in range(layout.stages)] for r in range(layout.replicas)
        ]
        own_row = self.some(rows)
        own_column = self.some(zip(*rows, strict=True))
        self.add_up = None if own_row is None else own_row.total
        self.reduce = None if own_column is None else own_column.mean

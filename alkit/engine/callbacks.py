"""Callbacks, which `alkit.fit` calls after each epoch: `callback(row, model)`.

A dict that one returns becomes columns of the history, True ends the run. Its memory goes into
checkpoints if it has `state_dict` and `load_state_dict`.
"""

import math
from collections.abc import Mapping
from typing import Any

from alkit.base.arguments import check_whole


class Best:
    """Let another column choose the epoch that is kept, such as "val_loss" or a metric's name.

    Its largest value is the best, unless it is a loss or `largest` says so. By default it is the
    validation accuracy, or where there is none its loss.
    """

    def __init__(self, column: str = "", *, largest: bool | None = None) -> None:
        self.column, self.largest = column, largest
        self.needs_validation = not column or column.startswith("val_")

    def __call__(self, row: Mapping[str, Any], model: Any) -> bool:
        """Look whether the column is there."""
        self.worth(row)
        return False

    def worth(self, row: Mapping[str, Any]) -> float:
        """Return the worth of an epoch, the more the better; nan counts as the least."""
        own = (
            (self.column, f"val_{self.column}") if self.column else ("val_acc", "val_loss", "epoch")
        )
        name = next((each for each in own if each in row), None)
        if name is None:
            raise KeyError(f"no column {self.column!r}: the history has {', '.join(row)}")
        largest = "loss" not in name if self.largest is None else self.largest
        worth = float(row[name]) if largest else -float(row[name])
        return -math.inf if math.isnan(worth) else worth


class Patience(Best):
    """End a run after `epochs` in a row without a better value, of a column as in `Best`.

    Example:
        >>> import alkit
        >>> stop = alkit.patience(2, "val_loss")
        >>> [stop({"val_loss": loss}, None) for loss in (3.0, 2.0, 2.5, 2.0)]
        [False, False, False, True]
    """

    def __init__(self, epochs: int, column: str = "", *, largest: bool | None = None) -> None:
        check_whole(patience=epochs)
        super().__init__(column, largest=largest)
        self.epochs, self.most, self.waited = epochs, -math.inf, 0

    def __call__(self, row: Mapping[str, Any], model: Any) -> bool:
        """Return whether the run ends."""
        worth = self.worth(row)
        self.waited = 0 if worth > self.most else self.waited + 1
        self.most = max(self.most, worth)
        return self.waited >= self.epochs

    def state_dict(self) -> dict[str, Any]:
        """Return its memory."""
        return {"most": self.most, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the memory of another one."""
        self.most, self.waited = state["most"], state["waited"]

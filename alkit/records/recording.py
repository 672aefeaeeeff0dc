"""Record the named values of a run: `Run` collects them, its runner puts them into the tables."""

import json
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alkit.data import paths
from alkit.data.files import replacing
from alkit.records import tables
from alkit.records.origin import busy, origin
from alkit.records.parameters import ParameterError, changes, check, of_checkout
from alkit.records.rows import check_row, plain, safe_name, whole

FOLDER, GIVEN = "ALKIT_RUN_FOLDER", "ALKIT_RUN_PARAMETERS"  # a runner tells its kernel
TAKEN = {*tables.RUN, *tables.VALUE}
log = logging.getLogger("alkit")


class Run:
    """Collect the named values of one run of one notebook and write them as one record.

    Attributes:
        parameters: all of the notebook's, also those left at their defaults.
        busy: share of the cores that others used when it began, 0 to 1; a notebook that trains for
            long before it takes times sets it anew.

    Args:
        parameters: as given by default: by `alkit run`, or what the notebook's names hold now.

    Example:
        results = Run("02_al_pipeline", preset=preset)
        results.record("accuracy", 97.2, method="al", data="digits", seed=0, n=360, unit="%")
        results.save()
    """

    def __init__(
        self, notebook: str, preset: str = "smoke", *, parameters: Mapping[str, Any] | None = None
    ) -> None:
        self.notebook, self.preset = safe_name(notebook, "notebook"), safe_name(preset, "preset")
        given = (_given(notebook) if parameters is None else parameters).items()
        self.parameters = {k: None if v is None else plain(v, k) for k, v in given}
        self._rows: dict[str, dict[str, Any]] = {}
        self.busy = busy()  # by others: nothing of this run has been computed yet

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows recorded so far, in the order in which they were first recorded."""
        named = {"notebook": self.notebook, "preset": self.preset}
        return [named | row for row in self._rows.values()]

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that are not those of the preset; none where that isn't known."""
        try:
            return changes(self.notebook, self.preset, self.parameters)
        except ParameterError:  # a notebook or a preset of somewhere else
            return {}

    def record(
        self,
        metric: str,
        value: Any,
        *,
        method: str | None = None,
        model: str | None = None,
        data: str | None = None,
        seed: int | None = None,
        n: int | None = None,
        unit: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one row; the same row recorded again (a cell run twice) takes the place of the first.

        Args:
            value: a finite number, bool, string, or a list of these; 0-d tensors become numbers.
            n: how many test items the value is a mean of.
            extra: further fields, such as an epoch or the index of a repetition.
        Raises: TypeError for other values, ValueError for numbers that are not finite.
        """
        if clash := sorted(set(extra or {}) & TAKEN):
            raise ValueError(
                f"extra fields {clash} of {metric!r}: these names are taken, choose others"
            )
        labels = {"method": method, "model": model, "data": data, "seed": whole(seed, "seed")}
        free = {name: plain(field, name) for name, field in (extra or {}).items()}
        key = json.dumps([metric, labels, free], sort_keys=True)
        if key in self._rows:
            log.warning("%s %s was recorded before and is replaced", metric, labels | free)
        measured = {"metric": metric, "value": plain(value, metric), "n": whole(n, "n")}
        row = labels | measured | {"unit": unit} | free
        check_row(row)
        self._rows[key] = row

    def save(self) -> Path:
        """Write the record whole or not at all, and return its path: `runs/<name>/record.json`.

        It is this run's own, whatever runs at the same time; `alkit run --record`, the end of a
        sweep or `alkit results --add` puts it into the tables of `notebooks/results/`.
        """
        named = self.notebook, self.preset, self.parameters
        alone = paths.runs_dir() / f"{self.notebook}.{self.preset}.{tables.identity(*named)}"
        path = Path(os.environ.get(FOLDER) or alone) / "record.json"
        content = {
            "notebook": self.notebook,
            "preset": self.preset,
            "parameters": self.parameters,
            **origin(),
            "busy": round(self.busy, 2),
            "rows": list(self._rows.values()),
        }
        with replacing(path) as partial:
            partial.write_text(json.dumps(content, allow_nan=False, indent=1), encoding="utf-8")
        return path


def _given(notebook: str) -> dict[str, Any]:
    """Return the parameters that this process runs a notebook with."""
    if told := os.environ.get(GIVEN):
        return json.loads(told)
    names = vars(sys.modules["__main__"])
    if "get_ipython" not in names:  # no notebook: a script or a test
        return {}
    known = of_checkout(notebook)
    held = {name: names[name] for name in known if name in names}
    return check(known, held, f"the parameters of {notebook}, as they are now")

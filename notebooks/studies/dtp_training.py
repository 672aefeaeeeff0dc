"""Training runs of notebook 52: which variants there are, how one is trained and recorded."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from alkit.data.parts import DataSet
from alkit.dtp.feedback import NotFinite
from alkit.dtp.networks import EXACT, Switches
from alkit.dtp.presets import PRESETS
from alkit.dtp.record import Record
from alkit.dtp.train import train
from alkit.engine.device import devices_named
from alkit.records import results
from alkit.records.study import pack

__all__ = ["VARIANTS", "Variant", "record", "trained"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """A row of the tables: what it has other than the preset."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    switches: Switches | None = None  # None: the preset's


# rates of the last four, and of dtp_fused, are the best of a few on validation with one seed;
# published are Adam 3e-4 for fused DTP, lr 1e-3 for vanilla DTP and TP
VARIANTS: dict[str, Variant] = {
    "bp": Variant({"method": "bp"}),  # at beta x lr, see `trained`
    "dtp": Variant(),
    "dtp_exact": Variant({"index": "frozen", "noise": "orthogonal"}, EXACT),
    "dtp_matched": Variant({}, Switches(matched=True)),
    "dtp_frozen": Variant({"index": "frozen"}),
    "dtp_orthogonal": Variant({"noise": "orthogonal"}),
    "dtp_fused": Variant(
        {"iterations": 1, "samples": 10, "feedback_optimizer": "adam", "feedback_lr": 3e-3}
        | {"optimizer": "adam", "lr": 1e-3, "schedule": "none"}
    ),
    "dtp_fixed": Variant({"iterations": 0}),
    "vanilla_dtp": Variant({"method": "vanilla_dtp", "feedback_lr": 1e-5, "lr": 0.03}),
    "tp": Variant({"method": "tp", "feedback_lr": 1e-4, "lr": 1e-3}),
    "ddtp": Variant({"method": "ddtp", "feedback_lr": 1e-2, "lr": 3e-3}),
}


def trained(
    name: str,
    preset: str,
    data: DataSet,
    seed: int,
    *,
    progress: bool = False,
    device: str = "cpu",
    **changes: Any,
) -> Record | None:
    """Train one row: a name of VARIANTS on a preset's network; backprop at the rate beta x lr.

    Returns:
        None where a loss is not finite: that a rule diverges is a result too.
    """
    if name not in VARIANTS:
        raise ValueError(f"variant is {name!r}: give {', '.join(VARIANTS)}")
    base, variant = PRESETS[preset], VARIANTS[name]
    settings = replace(base.settings, **(dict(variant.changes) | changes), seed=seed)
    if settings.method == "bp":
        settings = replace(settings, lr=settings.beta * settings.lr)
    base = replace(base, channels=data.train.x.shape[1], switches=variant.switches or base.switches)
    net = base.net(seed).to(devices_named(device)[0])
    try:
        return train(net, data, settings=settings, progress=progress)
    except NotFinite as error:
        log.warning("%s, seed %d, diverged: %s", name, seed, error)
        return None


def record(
    run: results.Run,
    name: str,
    seed: int,
    made: Record | None,
    data: DataSet,
    model: str = "tiny",
) -> None:
    """Write one run's values into a record, all that tables and figures are built from."""
    labels = {"method": name, "model": model, "data": data.name, "seed": seed}
    run.record("diverged", made is None, **labels)
    if made is None:
        return
    curve = [round(100 * value, 3) for value in made.history.val_acc]
    rows = [
        ("accuracy", 100 * made.test_acc, "%"),
        ("val_curve", curve, "%"),
        ("correct", pack(made.test_correct), ""),
        ("train_s", float(made.history.train_s.sum()), "s"),
    ]
    for metric, value, unit in rows:
        run.record(metric, value, n=len(made.test_correct), unit=unit, **labels)
    if not len(made.angles):
        return
    last = made.angles[made.angles.epoch == made.angles.epoch.max()]
    for row in last.itertuples():
        extra = {"block": row.block}
        run.record("angle", row.angle, unit="degrees", extra=extra, **labels)
        run.record("norm_ratio", row.norm_ratio, extra=extra, **labels)

"""Training runs of notebook 52: which variants there are, how one is trained and recorded.

    each at its own rate    seeds that count, every variant on a few pictures
    tuning                  seed 100, every rate of a grid: the test part stays closed
    testing                 seeds that count, at the rate that was best on validation

The split into train, validation and test is one for all seeds. A seed fixes the initial weights,
the order of the samples and the noise, the same for all variants.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import alkit
from alkit.data.given import Splits
from alkit.data.parts import DataSet
from alkit.dtp.feedback import NotFinite
from alkit.dtp.networks import EXACT, Switches
from alkit.engine.device import devices_named
from alkit.engine.record import Record
from alkit.records import results
from studies.common.study import TUNING_SEED
from studies.dtp.feedback_alignment import RULES
from studies.dtp.presets import PRESETS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Variant:
    """A row of the tables: what it has other than the preset.

    Attributes:
        switches: None for the preset's.
        rule: of `studies.dtp.feedback_alignment.RULES`, or none.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    switches: Switches | None = None
    rule: str = ""


# rates of vanilla_dtp, tp, ddtp and dtp_fused are the best of a few on validation with one seed;
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
    # trained as backprop is, by other gradients
    "fa": Variant({"method": "bp"}, rule="fa"),
    "dfa": Variant({"method": "bp"}, rule="dfa"),
    "shallow": Variant({"method": "bp"}, rule="shallow"),
}


def trained(
    name: str,
    preset: str,
    data: DataSet,
    seed: int,
    *,
    progress: bool = False,
    device: str = "cpu",
    ranks: int = 1,
    **changes: Any,
) -> Record | None:
    """Train one row: a name of VARIANTS on a preset's network; the tuning seed leaves test closed.

    Backprop and what is trained like it take the rate beta x lr: DTP's gradients are beta times
    theirs, so one number of a grid is one length of step.

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
    net = base.net(seed)
    if variant.rule:
        sample, _ = next(iter(data.train.batches(2, shuffle=False)))
        net = RULES[variant.rule](net, sample, seed)
    net = net.to(devices_named(device)[0])
    test = None if seed == TUNING_SEED else data.test
    parts = Splits(data.train, data.validation, test, data.name, data.num_classes)
    try:
        own = {"method": settings.method, "settings": settings, "progress": progress}
        return alkit.fit(net, parts, ranks=ranks, **own)
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
    lr: float | None = None,
) -> None:
    """Write one run's values into a record, all that tables and figures are built from.

    Args:
        lr: the rate that was given, if one was: it stands in every row then.
    """
    labels = {"method": name, "model": model, "data": data.name, "seed": seed}
    given = {} if lr is None else {"lr": lr}
    run.record("diverged", made is None, extra=given, **labels)
    if made is None:
        return
    curve = [round(100 * value, 3) for value in made.history.val_acc]
    correct = made.test_correct
    rows = [
        ("val_accuracy", 100 * made.history.val_acc.iloc[-1], "%", len(data.validation)),
        ("val_curve", curve, "%", len(data.validation)),
        ("train_s", float(made.history.train_s.sum()), "s", None),
    ]
    if correct is not None:
        rows += [("accuracy", 100 * made.test_acc, "%", len(correct))]
    for metric, value, unit, n in rows:
        run.record(metric, value, n=n, unit=unit, extra=given, **labels)
    if not len(made.details.angles):
        return
    last = made.details.angles[made.details.angles.epoch == made.details.angles.epoch.max()]
    for row in last.itertuples():
        extra = {"block": row.block} | given
        run.record("angle", row.angle, unit="degrees", extra=extra, **labels)
        run.record("norm_ratio", row.norm_ratio, extra=extra, **labels)

"""Training runs of notebook 26: which variants there are, how one is trained and recorded.

The split into train, validation and test is one for all seeds. A seed fixes the initial weights,
the order of the samples and the noise, the same for all variants.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import alkit
from alkit.data.parts import DataSet
from alkit.dtp.networks import Net
from alkit.dtp.pieces import Switches
from alkit.dtp.settings import METHODS
from alkit.engine.device import devices_named, place
from alkit.engine.trainer import Record
from alkit.lab import results
from studies.dtp.angles import compare
from studies.dtp.feedback_alignment import RULES
from studies.dtp.presets import PRESETS, Preset

COMPARED = 256  # samples


@dataclass(frozen=True)
class Variant:
    """A row of the tables: what it has other than the preset.

    Attributes:
        switches: None for the preset's.
        rule: "bp", or of `studies.dtp.feedback_alignment.RULES`; none for targets.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    switches: Switches | None = None
    rule: str = ""


# rates of vanilla_dtp, tp and dtp_fused are the best of a few on validation with one seed;
# published are Adam 3e-4 for fused DTP, lr 1e-3 for vanilla DTP and TP
VARIANTS: dict[str, Variant] = {
    "bp": Variant(rule="bp"),  # at beta x lr, see `trained`
    "dtp": Variant(),
    "dtp_matched": Variant({}, Switches(matched=True)),
    "dtp_frozen": Variant({"index": "frozen"}),
    "dtp_fused": Variant(
        {"feedback_optimizer": torch.optim.Adam, "feedback_lr": 3e-3}
        | {"iterations": 1, "samples": 10, "kind": torch.optim.Adam, "lr": 1e-3, "falls": ""}
    ),
    "dtp_fixed": Variant({"iterations": 0}),
    "vanilla_dtp": Variant({"method": "vanilla_dtp", "feedback_lr": 1e-5, "lr": 0.03}),
    "tp": Variant({"method": "tp", "feedback_lr": 1e-4, "lr": 1e-3}),
    # trained as backprop is, by other gradients
    "fa": Variant(rule="fa"),
    "dfa": Variant(rule="dfa"),
    "shallow": Variant(rule="shallow"),
}


def trained(
    name: str,
    preset: str,
    data: DataSet,
    seed: int,
    device: str = "cpu",
    ranks: int = 1,
    **changes: Any,
) -> Record | None:
    """Train one row: a name of VARIANTS on a preset's network.

    Backprop and what is trained like it take the rate beta x lr: DTP's gradients are beta times
    theirs, so one number of a grid is one length of step.

    Returns:
        None where a loss is not finite: that a rule diverges is a result too.
    """
    if name not in VARIANTS:
        raise ValueError(f"variant is {name!r}: give {', '.join(VARIANTS)}")
    base, variant = PRESETS[preset], VARIANTS[name]
    own = dict(variant.changes) | changes
    method = own.pop("method", "dtp")
    base = replace(base, channels=data.train.x.shape[1], switches=variant.switches or base.switches)
    base = base.changed(**own)
    net = base.net(seed)
    if variant.rule in RULES:
        sample, _ = next(iter(data.train.batches(2, shuffle=False)))
        net = RULES[variant.rule](net, sample, seed)
    net = net.to(devices_named(device)[0])
    parts = replace(data, train=data.augmented(base.augment).train)
    options = {"seed": seed, "progress": False}
    try:
        if variant.rule:
            return by_gradient(net, parts, base, **options)
        options |= vars(base.settings) | base.training(len(parts.train)) | {"ranks": ranks}
        return alkit.fit(net, parts, method=method, **options)
    except FloatingPointError:
        return None


def by_gradient(net: Net, data: DataSet, preset: Preset, **options: Any) -> Record:
    """Train by the gradient that autograd gives, with DTP's optimiser and fall of the rate."""
    options |= preset.training(len(data.train))
    options["lr"] *= preset.settings.beta
    for own in (own for block in net.blocks for own in block.feedback_parameters()):
        own.requires_grad_(False)
    return replace(alkit.fit(net, data, method="bp", **options), model=net)


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
    if VARIANTS[name].rule:
        return
    batch = next(iter(data.validation.batches(COMPARED, shuffle=False)))
    x, y = place(batch, made.model)
    way = METHODS[dict(VARIANTS[name].changes).get("method", "dtp")][1]
    for row in compare(made.model, x, y, rule=way).itertuples():
        extra = {"block": row.block} | given
        run.record("angle", row.angle, unit="degrees", extra=extra, **labels)
        run.record("norm_ratio", row.norm_ratio, extra=extra, **labels)

"""Runs of the notebooks: which variants there are, what is recorded of one, the tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alkit import results
from alkit.dtp.assign import bound
from alkit.dtp.compare import compare
from alkit.dtp.feedback import BlockFeedback
from alkit.dtp.metrics import weight_symmetry
from alkit.dtp.networks import EXACT, Net, Switches, network
from alkit.dtp.noise import draw, noise_for
from alkit.dtp.presets import PRESETS, feedback_rates
from alkit.dtp.run import Record
from alkit.dtp.settings import Settings
from alkit.dtp.train import train
from alkit.parts import DataSet
from alkit.study import gap, pack

__all__ = [
    "VARIANTS",
    "Variant",
    "accuracies",
    "alignment",
    "angles",
    "angles_of_betas",
    "best_multiple",
    "gaps",
    "record",
    "speeds",
    "timed",
    "trace",
    "trained",
]


@dataclass(frozen=True)
class Variant:
    """A row of the tables: what it has other than the preset."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    switches: Switches = Switches()


_BLIND = {"feedback_lr": 1e-3, "lr": 0.01}  # rates of the rules that the published lists don't suit

VARIANTS: dict[str, Variant] = {
    "bp": Variant({"method": "bp"}),  # at beta x lr, see `trained`
    "dtp": Variant(),
    "dtp_exact": Variant({"index": "frozen"}, EXACT),
    "dtp_matched": Variant({}, Switches(matched=True)),
    "dtp_frozen": Variant({"index": "frozen"}),
    "dtp_fused": Variant({
        "iterations": 1, "samples": 10, "feedback_optimizer": "adam", "feedback_lr": 3e-4,
        "optimizer": "adam", "lr": 3e-4, "schedule": "none",
    }),
    "dtp_fixed": Variant({"iterations": 0}),
    "vanilla_dtp": Variant({"method": "vanilla_dtp", **_BLIND}),
    "tp": Variant({"method": "tp", **_BLIND}),
    "ddtp": Variant({"method": "ddtp", **_BLIND}),
}  # fmt: skip


def trained(
    name: str,
    preset: str,
    data: DataSet,
    seed: int,
    *,
    progress: bool = False,
    ranks: int = 1,
    **changes: Any,
) -> Record:
    """Train one row: a name of VARIANTS on a preset's network; backprop at the rate beta x lr."""
    if name not in VARIANTS:
        raise ValueError(f"variant is {name!r}: give {', '.join(VARIANTS)}")
    base, variant = PRESETS[preset], VARIANTS[name]
    own = dict(variant.changes)
    if own.get("method") == "bp":
        own["lr"] = base.settings.beta * changes.get("lr", base.settings.lr)
        changes = {key: value for key, value in changes.items() if key != "lr"}
    # a variant's own values count more than what all rows have
    settings = replace(base.settings, **(changes | own), seed=seed)
    net = replace(base, switches=variant.switches, channels=data.train.x.shape[1]).net(seed)
    return train(net, data, settings=settings, ranks=ranks, progress=progress)


def record(
    run: results.Run, name: str, seed: int, made: Record, data: DataSet, model: str = "tiny"
) -> None:
    """Write one run's values into a record, all that tables and figures are built from."""
    curve = [round(100 * value, 3) for value in made.history.val_acc]
    rows = [
        ("accuracy", 100 * made.test_acc, "%"),
        ("val_curve", curve, "%"),
        ("correct", pack(made.test_correct), ""),
        ("train_s", float(made.history.train_s.sum()), "s"),
    ]
    labels = {"method": name, "model": model, "data": data.name, "seed": seed}
    for metric, value, unit in rows:
        run.record(metric, value, n=len(made.test_correct), unit=unit, **labels)
    if not len(made.angles):
        return
    last = made.angles[made.angles.epoch == made.angles.epoch.max()]
    for row in last.itertuples():
        extra = {"block": row.block}
        run.record("angle", row.angle, unit="degrees", extra=extra, **labels)
        run.record("norm_ratio", row.norm_ratio, extra=extra, **labels)


def accuracies(rows: pd.DataFrame) -> pd.DataFrame:
    """Return mean and spread by data set and variant, best first of each data set's."""
    own = rows[rows.metric == "accuracy"].assign(value=lambda t: t.value.astype(float))
    made = own.groupby(["data", "method"], sort=False).value.agg(
        n="count", mean="mean", sd="std", least="min", most="max"
    )
    return made.sort_values(["data", "mean"], ascending=[True, False])


def gaps(rows: pd.DataFrame, against: str = "bp") -> pd.DataFrame:
    """Return the points that each variant loses, test samples of all seeds drawn again."""
    found = []
    for data, own in rows.groupby("data", sort=False):
        for name in dict.fromkeys(own.method):
            if name != against and against in set(own.method):
                each = gap(own.drop(columns="recipe", errors="ignore"), against, name)
                found.append((data, name, each.points, each.low, each.high, each.seeds))
    return pd.DataFrame(found, columns=["data", "method", "points", "low", "high", "n"])


def angles(rows: pd.DataFrame, metric: str = "angle", how: str = "mean") -> pd.DataFrame:
    """Return a row a data set and variant, a column a block, over seeds."""
    own = rows[rows.metric == metric].assign(value=lambda t: t.value.astype(float))
    wide = own.groupby(["data", "method", "block"], sort=False).value.agg(how).unstack()
    return wide[list(dict.fromkeys(own.block))]


# ---- one batch


def trace(
    net: Net, x: Tensor, settings: Settings, iterations: int, every: int = 10
) -> pd.DataFrame:
    """Train every feedback on one batch; return angle, distance, norm_ratio and loss as it goes."""
    feedback = BlockFeedback(net, settings)
    run, rows = net.locally(x), [weight_symmetry(net).assign(iteration=0, loss=float("nan"))]
    for done in range(0, iterations, every):
        means = [
            float(feedback.learn(n, run, step=done, iterations=every).mean())
            for n in feedback.layers
        ]
        rows.append(weight_symmetry(net).assign(iteration=done + every, loss=means))
    return pd.concat(rows, ignore_index=True)


def angles_of_betas(
    name: str,
    x: Tensor,
    y_onehot: Tensor,
    betas: Sequence[float],
    *,
    seed: int = 0,
    **switches: Any,
) -> pd.DataFrame:
    """Return angles and errors against backprop of a network with copied weights, by beta."""
    net = network(
        name, channels=x.shape[1], side=x.shape[2], seed=seed, switches=Switches(**switches)
    ).to(x.dtype)
    net.make_symmetric()
    found = [compare(net, x, y_onehot, beta).assign(beta=beta) for beta in betas]
    return pd.concat(found, ignore_index=True)


# ---- time


def timed(
    preset: str, data: DataSet, *, form: str, ranks: int, seed: int = 0, **changes: Any
) -> Record:
    """Train a preset for an epoch of the data, without comparisons of ranks in between."""
    base = PRESETS[preset]
    own = {"form": form, "epochs": 1, "compare_every": 0, "check_every": 10**6, "augment": "none"}
    return train(
        base.net(seed), data, settings=replace(base.settings, **(own | changes)), ranks=ranks,
        progress=False,
    )  # fmt: skip


def speeds(made: Mapping[tuple[str, int], Sequence[Record]], steps: int) -> pd.DataFrame:
    """Return seconds of a step, and times as fast, a row a form and number of ranks.

    Ratios are medians over rounds of ratios within a round.

    Args:
        made: records of the rounds, by (form, ranks).
        steps: that each record's run had.
    """
    base = [r.history.train_s.sum() / steps for r in made["autograd", 1]]
    rows = []
    for (form, ranks), records in made.items():
        own = pd.Series([r.history.train_s.sum() / steps for r in records])
        same = pd.Series([r.history.train_s.sum() / steps for r in made[form, 1]])
        over_one, over_slow = same / own, pd.Series(base) / own
        reached = pd.Series([_bound(r, ranks) for r in made[form, 1]])
        rows.append({
            "form": form, "ranks": ranks, "n": len(own), "step_s": own.median(),
            "over one process": over_one.median(), "bound": reached.median(),
            "share of bound": (over_one / reached).median(),
            "over autograd, one process": over_slow.median(),
            "least": over_slow.min(), "most": over_slow.max(),
        })  # fmt: skip
    return pd.DataFrame(rows)


def _bound(record: Record, ranks: int) -> float:
    """Return what so many ranks can gain at most, by the seconds of one process."""
    loops = record.seconds[record.seconds.kind == "feedback"].sort_values("block").seconds
    rest = float(record.history.train_s.sum() - loops.sum())
    return bound(list(loops), ranks, rest=rest)


def best_multiple(net: Net, n: int, x: Tensor, sigma: float, index: str, draws: int = 4) -> float:
    """Return the multiple of the copied weight that L-DRL likes best as block n's feedback."""
    run, generator = net.locally(x), noise_for(0, 0, n)
    block, inputs, s, notes = net.blocks[n], run.inputs[n], run.s[n].detach(), run.notes[n]
    top = bottom = 0.0
    with torch.no_grad():
        base = block.feedback(s, notes)
        for _ in range(draws):
            dx, dy = draw(inputs, sigma, generator), draw(s, sigma, generator)
            noisy, own = block(inputs + dx)
            forward = block.feedback(noisy, own if index == "own" else notes) - base
            top += float((dx * forward).sum())
            bottom += float((block.feedback(s + dy, notes) - base).square().sum())
    return top / bottom


def alignment(
    x: Tensor,
    y_onehot: Tensor,
    *,
    iterations: int,
    seed: int,
    exact: bool = False,
    sigma: Sequence[float] = (0.2, 0.2, 0.1),
    kappa: float = 2e-2,
    beta: float = 0.4655,
) -> pd.DataFrame:
    """Return LeNet's angles to backprop on one batch: random, trained and copied feedback.

    As in the authors' figure, with padding 0, but with fewer iterations at higher rates.
    """
    switches = EXACT if exact else Switches()
    options = {"channels": x.shape[1], "side": x.shape[2], "seed": seed, "switches": switches}
    net = network("lenet", padding=0, **options)
    found = [compare(net, x, y_onehot, beta).assign(feedback="random")]
    rates = feedback_rates(net, x, sigma, kappa)
    settings = Settings(
        sigma=tuple(sigma), feedback_lr=tuple(rates), seed=seed, beta=beta,
        index="frozen" if exact else "own",
    )  # fmt: skip
    feedback, run = BlockFeedback(net, settings), net.locally(x)
    for n in feedback.layers:
        feedback.learn(n, run, step=0, iterations=iterations)
    found.append(compare(net, x, y_onehot, beta).assign(feedback="trained"))
    net.make_symmetric()
    found.append(compare(net, x, y_onehot, beta).assign(feedback="copied"))
    return pd.concat(found, ignore_index=True).assign(seed=seed)

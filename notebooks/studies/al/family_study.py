"""Runs of one family on one data set: which cases, how one is trained, what it records.

A case is (method, recipe, seed). The family notebooks train their cases in a loop; a sweep gives
every process one case. A killed case goes on from its checkpoint.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure
from torch import Tensor

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.base import paths
from alkit.data.parts import DataSet
from alkit.data.text import load_vectors
from alkit.engine.trainer import Record
from alkit.fitting import fit
from alkit.lab import results, viz
from alkit.lab.compare import label
from studies.al import exits, families
from studies.al.label_training import stalled
from studies.common.study import cosine


@dataclass(frozen=True)
class Case:
    """One training: method "bp" or "al", the recipe of AL ("" with bp), the seed."""

    method: str
    recipe: str
    seed: int

    @property
    def label(self) -> str:
        """Name the method in tables and figures: "bp", "al fixed_codes"."""
        return f"{self.method} {self.recipe}".strip()


@dataclass(frozen=True)
class Outcome:
    """What a case came to.

    Attributes:
        exits: test accuracy at every depth, 1 to all; of BP the one it has.
        mean_of_exits: test accuracy of the mean of all exits' scores.
        plateau_epochs: epochs after which some label autoencoder did no better than a constant.
    """

    case: Case
    model: ALModel | BPModel
    fit: Record
    exits: list[float]
    mean_of_exits: float
    plateau_epochs: int


def cases(methods: Iterable[str], recipes: Sequence[str], seeds: Iterable[int]) -> list[Case]:
    """Return all cases, seed by seed, so that the methods of a seed run side by side."""
    kinds = [(m, r) for m in methods for r in (recipes if m == "al" else [""])]
    return [Case(method, recipe, seed) for seed in seeds for method, recipe in kinds]


def train_case(
    case: Case,
    family: str,
    data: DataSet,
    *,
    epochs: int,
    batch_size: int,
    lr: float | None = None,
    sizes: Mapping[str, Any] | None = None,
    vectors: Tensor | None = None,
    resumable: str = "",
    **options: Any,
) -> Outcome:
    """Train one case, the same blocks from the same seed for every method.

    Args:
        lr: the recipe's by default; BP without one takes that of "fixed_codes".
        resumable: name of a notebook; its run then keeps a checkpoint under `runs/checkpoints/`
            and goes on from it, as long as case, data and settings are the same.
        options: of `alkit.fit`.
    """
    kind = "texts" if data.train.is_text else "images"
    recipe = families.scheme_for(case.recipe or "fixed_codes", kind)
    torch.manual_seed(case.seed)
    model = families.model(
        family,
        data,
        case.method,
        recipe=recipe,
        lr=lr,
        vectors=vectors,
        **(sizes or {}),
    )
    settings: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "seed": case.seed}
    method = "local" if getattr(model, "rule", "") else case.method
    settings |= {"method": method, **options}
    if resumable:
        about = [case, family, data.fingerprint(), lr, sizes, settings, recipe]
        table = b"" if vectors is None else vectors.numpy().tobytes()
        digest = hashlib.sha256(repr(about).encode() + table).hexdigest()[:12]
        settings["checkpoint"] = paths.root() / f"runs/checkpoints/{resumable}.{digest}.pt"
    if recipe.cosine:
        settings.setdefault("scheduler", cosine(epochs))
    if isinstance(model, ALModel):
        settings["callbacks"] = [*settings.get("callbacks", ()), stalled(data.num_classes)]
    done = fit(model, data, **settings)
    plateau = int((done.history["stalled"] > 0).sum()) if "stalled" in done.history else 0
    return Outcome(case, model, done, *_exits(model, data, done), plateau)


def vectors_for(name: str, data: DataSet, *, seed: int = 0) -> tuple[Tensor, int]:
    """Return a text set's word vectors (V, E) by name ("glove.6B.50d"), and how many were found."""
    return load_vectors(name, data.vocabulary, seed=seed)


def record(
    run: results.Run,
    family: str,
    data: str,
    outcome: Outcome,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a case's values into a run's record, all that tables and figures are built from.

    Args:
        extra: further fields of every row, beside the recipe.
    """
    case, done = outcome.case, outcome.fit
    labels: dict[str, Any] = {"method": case.method, "model": family, "data": data}
    fields = {"recipe": case.recipe, **(extra or {})}
    assert done.test_correct is not None  # a data set has a test part
    assert done.test_acc is not None
    n = len(done.test_correct)
    rows: list[tuple[str, Any, str]] = [
        ("accuracy", 100 * done.test_acc, "%"),
        ("best_epoch", done.best_epoch, "epochs"),
        ("val_curve", [round(100 * value, 3) for value in done.history.val_acc], "%"),
        ("mean_of_exits", 100 * outcome.mean_of_exits, "%"),
        ("exits", [round(100 * value, 3) for value in outcome.exits], "%"),
        ("plateau_epochs", outcome.plateau_epochs, "epochs"),
    ]
    rows += [(name, float(done.history[name].sum()), "s") for name in ("data_s", "train_s")]
    for metric, value, unit in rows:
        run.record(metric, value, n=n, unit=unit, extra=fields, seed=case.seed, **labels)


def curves(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the validation curves of loaded records: label, seed, epoch, val_acc in percent."""
    own = frame[frame["metric"] == "val_curve"]
    rows = [
        {"label": label(row), "data": row.data, "model": row.model, "seed": row.seed}
        | {"epoch": epoch, "val_acc": value}
        for row in own.itertuples()
        for epoch, value in enumerate(row.value, start=1)
    ]
    return pd.DataFrame(rows)


def draw_curves(frame: pd.DataFrame) -> Figure:
    """Draw validation accuracy over the epochs by method and data set; bands are seeds.

    The title has the largest difference between the ends of local classifiers and backprop.
    """
    sets = list(frame.groupby("data"))
    size = (viz.WIDE[0] if len(sets) > 1 else viz.SINGLE[0], 3.6)
    fig, axes = plt.subplots(1, len(sets), figsize=size, squeeze=False)
    gaps = []
    for ax, (name, own) in zip(axes[0], sets, strict=True):
        found = curves(own)
        title = f"{viz.label(name)}, {own.seed.nunique()} seeds"
        told = {"palette": {each: viz.colour(each) for each in found.label}, "hue": "label"}
        told |= {"errorbar": ("pi", 100), "legend": ax is axes[0, 0]}
        sns.lineplot(found, x="epoch", y="val_acc", ax=ax, **told)
        ax.locator_params("x", integer=True)
        ax.set(title=title, ylabel="validation accuracy, %" if ax is axes[0, 0] else "")
        last = found[found.epoch == found.epoch.max()].groupby("label").val_acc.mean()
        gaps.append(last["al fixed_codes"] - last["bp"])
    handles, names = axes[0, 0].get_legend_handles_labels()
    axes[0, 0].get_legend().remove()
    names = [viz.label(each) for each in names]
    fig.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    far = max(gaps, key=abs)
    title = f"Validation, the largest gap: local classifiers minus backprop {far:+.1f} points"
    fig.suptitle(title, x=0.01, ha="left", wrap=True)
    return fig


def _exits(model: ALModel | BPModel, data: DataSet, done: Record) -> tuple[list[float], float]:
    """Return the test accuracy of every exit, and that of the mean of their scores."""
    if isinstance(model, BPModel):
        accuracy = float(done.metrics["accuracy"])
        return [accuracy], accuracy
    scores_LNC = exits.scores(model, data.test)
    guesses = [*scores_LNC, scores_LNC.mean(0)]
    *each, mean = ((s.argmax(1) == data.test.y).float().mean().item() for s in guesses)
    return each, mean

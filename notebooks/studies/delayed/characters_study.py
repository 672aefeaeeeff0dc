"""Delayed gradients on a model that learns: runs, what is recorded of them, and their tables.

    tuning    seed 100, every rate of the grid, one setting: the test articles stay closed
    testing   seeds 0 to 4 at the rate that was best on validation articles

A seed fixes initial weights, the windows that are drawn and the noise, the same for all methods.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from alkit.delayed import Pipeline, even_cuts, train_epoch
from alkit.lab import results, viz
from alkit.lab.compare import gap
from studies.common.rates import linear
from studies.common.study import TUNING_SEED, Named, Study
from studies.delayed import characters
from studies.delayed.corrections import GapAware, PipeMare, Predict, nadam
from studies.delayed.prose import load_prose

MARGIN = 0.02  # nats per character: a hundredth of what the model is left with
# (worse, better): what the first loses against the second
CONTRASTS = (
    ("pipedream", "seq"),
    ("2bw", "seq"),
    ("fr", "pipedream"),
    ("fr, new noise", "fr"),
)
# of corrections: what each gives back of what old gradients cost, and the optimiser without delay
CORRECTED = (
    ("pipedream, predict", "pipedream"),
    ("pipedream, gap_aware", "pipedream"),
    ("pipedream, pipemare", "pipedream"),
    ("pipedream, nadam", "pipedream"),
    ("seq, nadam", "seq"),
)
SETTING = ["dropout", "modules"]
WARMED = 4  # PipeMare's rates are full after this part of the steps
TUNED = (0.1, 5)  # the setting at which every method's rate was chosen


@dataclass(frozen=True)
class Text:
    """A corpus as characters: one text to train on, articles to look at."""

    alphabet: characters.Alphabet
    train: Tensor
    validation: list[Tensor]
    test: list[Tensor]


@dataclass(frozen=True)
class Case:
    """One run."""

    method: str
    modules: int
    dropout: float
    seed: int
    lr: float

    @property
    def name(self) -> str:
        """The case as bars of progress show it."""
        return f"{self.method} K={self.modules} dropout={self.dropout:g} seed={self.seed}"


def load_text(corpus: str) -> Text:
    """Return a corpus that is no larger than WikiText's validation part: five sixths to train on.

    The last sixth of those articles chooses rates, and the part "test" is looked at in the end.
    """
    documents, test = load_prose(corpus, "valid"), load_prose(corpus, "test")
    cut = len(documents) - len(documents) // 6
    text = characters.joined_text(documents[:cut])
    alphabet = characters.Alphabet(text)
    encoded = [alphabet.encode(characters.joined_text([each])) for each in documents[cut:]]
    kept = [alphabet.encode(characters.joined_text([each])) for each in test]
    return Text(alphabet, alphabet.encode(text), encoded, kept)


def cuts_of(modules: int, layers: int) -> list[int]:
    """Return cuts between units; with three modules for five units each has a layer."""
    return [2, 3] if (modules, layers) == (3, 3) else even_cuts(layers + 2, modules)


def run(
    case: Case, text: Text, *, sizes: characters.Sizes, steps: int, batch_size: int, micro: int
) -> tuple[Tensor, list[float], list[float] | None]:
    """Train one case; return the losses of all batches and those of the articles.

    Args:
        micro: micro-batches of 2bw.
    Returns:
        Losses (steps,); of the validation articles; of the test articles, None for the tuning seed.
    """
    kind, _, variant = case.method.partition(", ")
    units = characters.character_model(
        sizes._replace(dropout=case.dropout), len(text.alphabet), case.seed
    )
    optimizer = nadam if variant == "nadam" else partial(torch.optim.AdamW, weight_decay=0.01)
    cuts = cuts_of(case.modules, sizes.layers)
    rate = linear(steps)
    made = partial(_clipping, partial(optimizer, lr=case.lr), rate)
    pipeline = Pipeline(units, characters.next_loss, cuts, made)
    windows = characters.batches(
        text.train, size=batch_size, context=sizes.context, steps=steps, seed=case.seed
    )
    own: dict[str, Any] = {"micro": micro} if kind == "2bw" else {}
    simple = {"predict": Predict(rate), "gap_aware": GapAware()}
    own |= {"correction": simple[variant]} if variant in simple else {}
    if variant == "pipemare":
        kind, own["correction"] = "pipedream_inplace", PipeMare(warmup=steps // WARMED)
    new = variant == "new noise"
    fitted = train_epoch(pipeline, windows, kind, replay_noise=not new, seed=case.seed, **own)
    look = partial(characters.article_losses, pipeline, context=sizes.context)
    opened = case.seed != TUNING_SEED
    return fitted.losses, look(text.validation), look(text.test) if opened else None


def _clipping(
    factory: Any, rate: Callable[[int], float], parameters: list[nn.Parameter]
) -> torch.optim.Optimizer:
    """Make an optimiser whose rates follow the batch; each tensor's gradient has norm 1 at most."""
    own: torch.optim.Optimizer = factory(parameters)
    scheduler = LambdaLR(own, rate)
    own.register_step_post_hook(lambda *_: scheduler.step())
    own.register_step_pre_hook(lambda *_: [clip_grad_norm_(p, 1.0) for p in parameters] and None)
    return own


def record(
    made: results.Run,
    case: Case,
    data: str,
    outcome: tuple[Tensor, Sequence[float], Sequence[float] | None],
) -> None:
    """Write a case's values into a record, all that the tables are built from."""
    steps, validation, test = outcome
    labels = {"method": case.method, "model": "characters", "data": data, "seed": case.seed}
    extra = {"modules": case.modules, "dropout": case.dropout, "lr": case.lr, "steps": len(steps)}
    part = max(1, len(steps) // 40)
    curve = steps.nan_to_num(99.0, 99.0).unfold(0, part, part).mean(1)
    rows: list[tuple[str, Any, int | None]] = [
        ("diverged", not bool(steps.isfinite().all()), None),
        ("curve", [round(value, 4) for value in curve.tolist()], None),
        ("val_loss", float(np.mean(validation)), len(validation)),
    ]
    if test is not None:
        rows += [("loss", float(np.mean(test)), len(test))]
    for metric, value, n in rows:
        unit = "" if metric == "diverged" else "nats"
        made.record(metric, value, n=n, unit=unit, extra=extra, **labels)


def losses(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return a row a setting and method: rate, n, mean and sd of the test loss, and of training's.

    Sequential training is the same for any number of modules and stands with 1.
    """
    own = _opened(recorded)
    own = own[own.metric == "loss"].astype({"value": float})
    found = own.groupby([*SETTING, "method"], sort=False)
    made = found.agg(
        lr=("lr", "first"), n=("value", "count"), loss=("value", "mean"), sd=("value", "std")
    )
    return made.reset_index().sort_values(SETTING, kind="stable", ignore_index=True)


def draw_contrasts(gaps: Named) -> Figure:
    """Draw the contrasts, see `studies.common.study.Study.draw`; the title counts PipeDream's."""
    own = {key: pair for key, pair in gaps.items() if key[2] == "pipedream - seq"}
    worse = STUDY.points(own, "worse")
    title = f"PipeDream against sequential training: undecided in {len(own)} settings"
    if worse:
        cost = f"{np.median(worse):.2f} nats (median)"
        title = f"PipeDream costs {cost}, decided in {len(worse)} of {len(own)} settings"
    return STUDY.draw(gaps, title)


def draw_curves(recorded: pd.DataFrame, counted: float) -> Figure:
    """Draw the losses of batches, means over seeds, at the setting with the most runs.

    Args:
        counted: the loss of characters' frequencies alone.
    """
    own = recorded[recorded.metric == "curve"]
    cut = own[own.modules > 1]
    runs = (cut if len(cut) else own).groupby(SETTING).size()
    dropout, modules = max(runs[runs == runs.max()].index)  # of equals, the most of both
    own = own[(own.dropout == dropout) & own.modules.isin([1, modules])]
    fig, ax = plt.subplots(figsize=viz.WIDE)
    ends: dict[str, float] = {}
    for method, rows in own.groupby("method", sort=False):
        values = np.mean(rows.value.tolist(), axis=0)
        at = np.arange(1, len(values) + 1) * rows.steps.iloc[0] / len(values)
        ends[str(method)] = values[-1]
        label = f"{viz.label(method)}: {values[-1]:.2f}"
        ax.plot(at, values, color=viz.colour(method), ls=":" if "," in method else "-", label=label)
    ax.axhline(counted, color="0.6", ls="--", lw=0.8)
    ax.set(xlabel="batch", ylabel="nats per character")
    lines, names = ax.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda at: -list(ends.values())[at])
    legend = [lines[at] for at in order], [names[at] for at in order]  # from above, as at the end
    ax.legend(*legend, title="last part", bbox_to_anchor=(1, 1), fontsize=7, frameon=False)
    title = f"{modules} modules, {own.seed.nunique()} seeds"
    if {"pipedream", "seq"} <= ends.keys():
        cost = ends["pipedream"] - ends["seq"]
        title += f": PipeDream ends {cost:.2f} nats above sequential"
    ax.set_title(title, wrap=True)
    return fig


def _opened(recorded: pd.DataFrame) -> pd.DataFrame:
    if not len(recorded):
        return pd.DataFrame(columns=["metric", "seed", "method", "lr", "value", *SETTING])
    return recorded[recorded.seed != TUNING_SEED]


def _with_sequential(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the tuning seed's rows, and at each setting its own and seq's, which has 1 module."""
    own = _opened(recorded)
    made = [recorded[recorded.seed == TUNING_SEED]]
    for (_, modules), rows in own[own.modules > 1].groupby(SETTING):
        alone = own[(own.modules == 1) & (own.dropout == rows.dropout.iloc[0])]
        made.append(pd.concat([alone.assign(modules=modules), rows]))
    return pd.concat(made)


STUDY = Study(
    contrasts=CONTRASTS,
    margin=MARGIN,
    setting=SETTING,
    by=["method"],
    validation="val_loss",
    rows=_with_sequential,
    compare=partial(gap, metric="loss"),
    unit="nats per character more",
    measure="nats",
    digits=3,
    words={"ahead": "worse", "behind": "better"},
    missing="counted",
)
CORRECTIONS = replace(STUDY, contrasts=CORRECTED)
chosen_rates, edges = STUDY.chosen_rates, STUDY.edges
contrast_gaps, contrasts = STUDY.contrast_gaps, STUDY.table


def corrections(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return the contrasts of `CORRECTED` that have runs; Holm's rule is over a setting's five."""
    gaps = CORRECTIONS.contrast_gaps(recorded)
    return CORRECTIONS.table({key: pair for key, pair in gaps.items() if pair[0].seeds})


def recovered(recorded: pd.DataFrame) -> pd.DataFrame:
    """Return what part of PipeDream's cost each correction gives back: a row a setting and method.

    1 - (own - its optimiser's without delay) / (PipeDream - sequential), test losses paired by
    seed; mean, lowest and highest.
    """
    own = recorded[(recorded.metric == "loss") & (recorded.seed != TUNING_SEED)]
    rows = []
    for (dropout, modules), part in _opened(_with_sequential(own)).groupby(SETTING):
        wide = part.astype({"value": float}).pivot(index="seed", columns="method", values="value")
        if not {"pipedream", "seq"} <= {*wide}:
            continue
        for method, _ in CORRECTED[:-1]:
            against = "seq, nadam" if method.endswith("nadam") else "seq"
            if not {method, against} <= {*wide}:
                continue
            left = (wide[method] - wide[against]) / (wide.pipedream - wide.seq)
            share = (1 - left).dropna()
            about = {"dropout": dropout, "modules": modules, "method": method, "n": len(share)}
            ends = {"mean": share.mean(), "lowest": share.min(), "highest": share.max()}
            rows.append(about | {f"given back, {key}": value for key, value in ends.items()})
    return pd.DataFrame(rows)

"""Figures of the notebooks of split learning, delayed gradients, elastic pipelines and targets."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from alkit.delayed.schedules import schedule_for
from alkit.figures import viz
from alkit.records.comparisons import Gap, of_seeds
from alkit.records.verdicts import published
from alkit.schedule.clock import simulate
from alkit.schedule.task import Task
from alkit.schedule.timeline import Timeline
from alkit.split.schedule import LANES, split
from studies import (
    characters_study,
    delayed_study,
    dtp_tables,
    elastic_memory,
    elastic_study,
)

__all__ = [
    "bert",
    "break_even",
    "cache",
    "characters",
    "cuts",
    "directions",
    "dtp_accuracy",
    "dtp_angles",
    "dtp_speed",
    "elastic_speed",
    "freezing",
    "inverse",
    "lanes",
    "matching",
    "memory",
    "micro_batches",
    "plan",
    "pretraining",
    "resnet",
    "schedules",
    "switches",
    "times",
]


# ---- split learning


def lanes(rows: pd.DataFrame, micro: int = 3) -> Figure:
    """Draw the four lanes of an iteration, in series and in micro-batches, in virtual time."""
    seconds = {"forward": 3.0, "backward": 3.0, "send": 3.0}

    def duration(task: Task, parts: int) -> float:
        if task.kind == "update":
            return 0.0
        at_server = task.stage == 1 and task.kind != "send"
        return seconds[task.kind] / parts / (2 if at_server else 1)

    lines = {}
    for parts in (1, micro):
        found = simulate(split(parts), lambda task, n=parts: duration(task, n), 1)
        named = (i._replace(resource=LANES[int(i.resource.split()[1])]) for i in found.intervals)
        lines[parts] = Timeline.of((i for i in named if i.end_s > i.start_s), LANES)
    gain = lines[1].span_s / lines[micro].span_s
    figure = viz.gantts(
        {"one batch: one lane works, three wait": lines[1], f"{micro} micro-batches": lines[micro]},
        f"At these costs {micro} micro-batches make an iteration {gain:.2f} times as fast",
    )
    figure.axes[-1].set_xlabel(
        "time; a batch takes 3 a lane, on the device 3 forward and 3 backward"
    )
    return figure


def micro_batches(rows: pd.DataFrame) -> Figure:
    """Draw seconds an iteration over micro-batches, measured and predicted, by link and cut."""
    drawn = rows[rows.metric.isin(["iteration_s", "predicted_s"])].astype({"value": float})
    fig, ax = plt.subplots(figsize=(7, 3.4))
    palette = iter(viz.shades(drawn.groupby(["link", "cut"]).ngroups))
    for (place, cut), own in drawn.groupby(["link", "cut"]):
        wide, shade = own.pivot(index="micro", columns="metric", values="value"), next(palette)
        ax.plot(wide.index, wide.iteration_s, "o-", color=shade, label=f"{place}, cut {int(cut)}")
        ax.plot(wide.index, wide.predicted_s, "--", color=shade, lw=1)
    best = rows[rows.metric == "times_as_fast"].value.astype(float).max()
    ax.set(xlabel="micro-batches", ylabel="seconds an iteration", ylim=0, xticks=wide.index)
    ax.set_title(f"Overlap is up to {best:.2f} times as fast; dashed: predicted")
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return fig


def plan(rows: pd.DataFrame) -> Figure:
    """Draw measured against predicted seconds of the candidates that were run."""
    own = rows[rows.metric.isin(["iteration_s", "predicted_s"])].astype({"value": float})
    wide = own.pivot(index=["cut", "micro"], columns="metric", values="value")
    wide = wide.sort_values("predicted_s")
    fig, ax = plt.subplots(figsize=(6.5, 0.9 + 0.33 * len(wide)))
    at = range(len(wide))
    ax.barh(at, wide.iteration_s, color=viz.colour("pipelearn"), label="measured")
    ax.plot(wide.predicted_s, at, "k|", ms=14, label="predicted")
    names = [f"cut {cut:.0f}, micro-batches {micro:.0f}" for cut, micro in wide.index]
    ax.set_yticks(at, names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    lost = float(rows[rows.metric == "regret"].value.iloc[0])
    tried = int(rows[rows.metric == "candidates"].value.iloc[0])
    said = f"The plan picked of {tried} loses {lost:.0f} % to the best one measured"
    ax.set(xlabel="seconds an iteration", title=said)
    ax.legend(frameon=False)
    return fig


KINDS = ["central", "fed", "splitfed", "pipelearn"]


def break_even(rows: pd.DataFrame) -> Figure:
    """Draw who is fastest by device speed and link speed; numbers are times federated learning."""
    rows = rows.astype({"value": float})
    wide = rows.pivot(index=["model", "slower", "mbit"], columns="method", values="value")
    wide["winner"] = wide[KINDS].idxmin(axis=1)
    wide["over fed"] = wide.fed / wide[["central", "splitfed", "pipelearn"]].min(axis=1)
    drawn = wide.reset_index()
    shown = drawn.model.unique()
    fig, axes = plt.subplots(1, len(shown), figsize=(4.6 * len(shown), 3.6), squeeze=False)
    places = {"index": "slower", "columns": "mbit"}
    style = {"annot_kws": {"color": "black"}, "cbar": False, "alpha": 0.7, "fmt": "g"}
    style["cmap"] = ListedColormap([viz.colour(kind) for kind in KINDS])
    for ax, model in zip(axes[0], shown, strict=True):
        own = drawn[drawn.model == model]
        codes = own.assign(code=own.winner.map(KINDS.index)).pivot(**places, values="code")
        labels = own.pivot(**places, values="over fed").round(1)
        sns.heatmap(codes, ax=ax, annot=labels, vmin=0, vmax=3, **style)
        ax.set(xlabel="uplink, Mbit/s", ylabel="device slower by", title=model)
    # only who wins somewhere, as light as in the map
    won = [kind for kind in KINDS if kind in set(drawn.winner)]
    handles = [Patch(color=viz.colour(kind), label=viz.label(kind), alpha=0.7) for kind in won]
    fig.legend(handles=handles, ncols=len(won), loc="outside lower center", frameon=False)
    share = (drawn.winner == "pipelearn").mean()
    said = f"PipeLearn is fastest in {100 * share:.0f} % of these places; numbers: over federated"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig


# ---- delayed gradients


def schedules(rows: pd.DataFrame, modules: int = 3, batches: int = 5) -> Figure:
    """Draw who is busy when, by method, in virtual time; forward 1, backward 2, update 0."""
    shown = ("seq", "ddg_barrier", "ddg", "fr", "pipedream")
    costs = {"forward": 1.0, "backward": 2.0, "update": 0.1}

    def seconds(method: str, task: Task) -> float:
        again = costs["forward"] if method == "fr" and task.stage < modules - 1 else 0.0
        return costs[task.kind] + (again if task.kind == "backward" else 0.0)

    lines = {
        method: simulate(schedule_for(method, modules), lambda t, m=method: seconds(m, t), batches)
        for method in shown
    }
    named = {f"{viz.label(m)}: {line.span_s:g}": line for m, line in lines.items()}
    best = min(shown, key=lambda method: lines[method].span_s)
    title = f"{viz.label(best)} needs the least time for {batches} batches"
    return viz.gantts(named, title, number="batch")


def directions(rows: pd.DataFrame) -> Figure:
    """Draw the cosine of every module's update with true backprop's, by method."""
    own = rows[rows.metric == "cosine"].astype({"value": float, "module": int})
    wide = own.pivot(index="method", columns="module", values="value")
    fig, ax = plt.subplots()
    for method, values in wide.iterrows():
        style = {"color": viz.colour(str(method)), "marker": viz.marker(str(method))}
        ax.plot(range(wide.shape[1]), values, label=viz.label(str(method)), **style)
    ax.set(xlabel="module", ylabel="cosine with true backprop, median", xticks=range(wide.shape[1]))
    ax.set_title(f"PipeDream's delays: cosines down to {wide.loc['pipedream'].min():.2f}")
    ax.legend(frameon=False, fontsize=7)
    return fig


def cuts(rows: pd.DataFrame) -> Figure:
    """Draw by how much measured cuts are faster than uniform ones, by method and modules."""
    own = rows[rows.metric == "gain"].astype({"value": float, "modules": int})
    fig, ax = plt.subplots()
    for method, part in own.groupby("method", sort=False):
        style = {"color": viz.colour(method), "marker": viz.marker(method)}
        ax.plot(part.modules, part.value, label=viz.label(method), ms=4, **style)
    ax.axhline(1, color="0.6", lw=0.8)
    ax.set(xlabel="modules", ylabel="uniform over best", xticks=sorted(own.modules.unique()))
    ax.set_title(f"Measured cuts are up to {own.value.max():.2f} times as fast as uniform ones")
    ax.legend(frameon=False, fontsize=7)
    return fig


def resnet(rows: pd.DataFrame) -> Figure:
    """Draw the points each method is behind sequential training, with paired t intervals."""
    lost = delayed_study.gaps(rows)
    fig, ax = plt.subplots()
    for shift, (method, own) in zip((-0.06, 0.06), lost.groupby("method"), strict=False):
        style = {"color": viz.colour(method), "marker": viz.marker(method), "capsize": 3}
        spread = [(own.points - own.low).fillna(0), (own.high - own.points).fillna(0)]
        ax.errorbar(own.modules + shift, own.points, spread, label=viz.label(method), **style)
    ax.axhline(0, color="0.6", lw=0.8)
    worst = lost.loc[lost.points.idxmax()]
    ticks = sorted(lost.modules.unique())
    ax.set(xlabel="modules", ylabel="points behind sequential training", xticks=ticks)
    told = Gap(*worst[list(Gap._fields)])
    ax.set_title(f"{viz.label(worst.method)}, {worst.modules} modules: {told} points behind")
    ax.legend(frameon=False)
    return fig


def times(rows: pd.DataFrame) -> Figure:
    """Draw seconds a batch on two ranks, and what the clock predicts of them."""
    timed = rows[rows.metric.isin(["batch_s", "predicted_s"])].astype({"value": float})
    table = timed.pivot(index="method", columns="metric", values="value").sort_values("batch_s")
    fig, ax = plt.subplots(figsize=(6, 0.6 + 0.4 * len(table)))
    colours = [viz.colour(method) for method in table.index]
    ax.barh(range(len(table)), table.batch_s, color=colours)
    ax.plot(table.predicted_s, range(len(table)), "k|", ms=14, label="predicted")
    names = [viz.label(m) if m != "1f1b" else "torch's 1F1B" for m in table.index]
    ax.set_yticks(range(len(table)), names)
    ax.invert_yaxis()
    gain = table.batch_s["1f1b"] / table.batch_s["pipedream"]
    ax.set(xlabel="seconds a batch after fill, median")
    ax.set_title(f"PipeDream, stale: {gain:.2f} times torch's exact 1F1B")
    ax.legend(frameon=False)
    return fig


def bert(rows: pd.DataFrame) -> Figure:
    """Draw the losses of a reduced BERT over the batches at its middle rate, by method."""
    final = rows[rows.metric == "final_loss"].astype({"value": float})
    middle = sorted(final.lr.unique())[final.lr.nunique() // 2]
    most = int(final.modules.max())
    at = (rows.lr == middle) & rows.modules.isin([1, most])
    fig, ax = plt.subplots()
    for method, group in rows[at & (rows.metric == "curve")].groupby("method", sort=False):
        values = np.mean(group.value.tolist(), axis=0)
        kind, _, noise = str(method).partition(", ")
        over = (np.arange(len(values)) + 1) * group.steps.iloc[0] / len(values)
        label = viz.label(kind) + (f", {noise}" if noise else "")
        ax.plot(over, values, color=viz.colour(kind), ls=":" if noise else "-", label=label)
    ends = final[(final.lr == middle) & final.modules.isin([1, most])]
    ends = ends.groupby("method").value.mean()
    apart = ends.drop("seq").median() - ends["seq"] if "seq" in ends else float("nan")
    ax.set(xlabel="batch", ylabel="loss, nats")
    ax.set_title(f"{most} modules, rate {middle:g}: stale methods end {apart:.2f} above sequential")
    ax.legend(frameon=False)
    return fig


def characters(rows: pd.DataFrame) -> Figure | None:
    """Draw what old gradients cost a character model, by contrast, with paired t intervals."""
    gaps = characters_study.contrast_gaps(rows)
    return characters_study.draw_contrasts(gaps) if gaps else None


# ---- elastic pipelines


def freezing(rows: pd.DataFrame) -> Figure:
    """Draw the gradient norms by layer and epoch, and what each rule loses against none."""
    norms = np.array(rows[rows.metric == "norms"].value.iloc[0])
    own = rows[rows.metric == "accuracy"].astype({"value": float})
    wide = own.pivot(index="seed", columns="method", values="value")[own.method.unique()]
    fig, (left, right) = plt.subplots(1, 2, figsize=viz.WIDE)
    shade = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(norms)))
    for epoch, row in enumerate(norms):
        name_it = f"after epoch {epoch + 1}" if epoch in (0, len(norms) - 1) else None
        left.plot(range(1, len(row) + 1), row / row.sum(), color=shade[epoch], label=name_it)
    left.set(xlabel="layer, from below", ylabel="share of all norms", title="Gradient norms")
    left.legend(frameon=False, fontsize=7)
    rules = [rule for rule in wide if rule != "none"]
    if "none" in wide:
        found = [of_seeds((wide[rule] - wide["none"]).dropna()) for rule in rules]
        for at, each in enumerate(found):
            ends = [[each.points - each.low], [each.high - each.points]]
            bars = None if np.isnan(each.low) else ends
            style = {"color": viz.colour("elastic"), "capsize": 3}
            right.errorbar(each.points, at, xerr=bars, marker="o", **style)
        right.set_yticks(range(len(rules)), rules)
        right.axvline(0, color="0.35", lw=1)
        right.invert_yaxis()
        best = max(zip(found, rules, strict=True))
        title = f"The best rule, {best[1]}, ends {best[0].points:+.1f} points from never freezing"
        fig.suptitle(title, x=0.01, ha="left", fontweight="bold")
    right.set(xlabel="points against never freezing", title="What a rule costs")
    return fig


def elastic_speed(rows: pd.DataFrame) -> Figure:
    """Draw samples a second and frozen layers over the epochs of an elastic run."""
    own = rows[rows.metric.isin(["samples_per_s", "frozen", "stages"])].astype({"value": float})
    wide = own.pivot(index="epoch", columns="metric", values="value")
    fig, (top, low) = plt.subplots(2, figsize=(6, 3.6), sharex=True, height_ratios=[2, 1])
    top.plot(wide.index, wide.samples_per_s, marker="D", color=viz.colour("elastic"))
    top.set(ylabel="samples a second", ylim=0)
    low.step(wide.index, wide.frozen, where="mid", color="0.35", label="frozen layers")
    low.step(wide.index, wide.stages, where="mid", color="0.35", ls="--", label="stages")
    low.set(xlabel="epoch", ylim=0)
    low.legend(frameon=False, fontsize=8)
    gain = wide.samples_per_s.iloc[-1] / wide.samples_per_s.iloc[0]
    said = f"{gain:.1f} times the samples a second with {wide.frozen.iloc[-1]:.0f} layers frozen"
    top.set_title(said)
    return fig


def cache(rows: pd.DataFrame) -> Figure:
    """Draw seconds of an epoch with stored and with computed features, as layers freeze."""
    own = rows[rows.metric == "epoch_s"].astype({"value": float})
    wide = own.pivot(index="epoch", columns="kind", values="value")
    best = (wide.computed / wide.stored).iloc[1:].max()  # nothing is frozen in epoch 0
    fig, ax = plt.subplots(figsize=viz.SINGLE)
    ax.plot(wide.index, wide.computed, "o-", color=viz.colour("freeze"), label="computed")
    ax.plot(wide.index, wide.stored, "D-", color=viz.colour("elastic"), label="stored")
    ax.set(xlabel="epoch", ylabel="seconds", ylim=0, xticks=wide.index)
    ax.set_title(f"Stored features make an epoch up to {best:.2f} times as fast")
    ax.legend(frameon=False)
    return fig


def switches(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as data parallel training each row is, by task, medians."""
    chosen = elastic_study.ablation(rows)
    tasks = chosen.index.get_level_values("data").unique()
    beside = chosen["against ddp"].notna().any()
    base, other = ("against ddp", "ddp") if beside else ("times as fast", "1f1b")
    size = 4.8 * len(tasks), 1.2 + 0.28 * chosen.index.get_level_values("method").nunique()
    fig, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False)
    for ax, which in zip(axes[0], tasks, strict=True):
        own = chosen.loc[which].sort_values(base, ascending=False)
        colours = [viz.colour(variant) for variant in own.index]
        ax.barh([viz.label(v) for v in own.index], own[base], color=colours)
        ax.axvline(1, color="0.35", lw=1)
        ax.grid(visible=False, axis="y")
        ax.set(xlabel=f"times as fast as {viz.label(other)}", title=which)
        ax.invert_yaxis()
    ours = chosen.loc[tasks[0]][base]
    first = "" if ours.idxmax() == "elastic" else f"; {viz.label(ours.idxmax())} {ours.max():.1f}"
    said = f"{tasks[0]}: all four switches {ours['elastic']:.1f} times as fast as"
    fig.suptitle(f"{said} {viz.label(other)}{first}", x=0.01, ha="left", fontweight="bold")
    return fig


def memory(rows: pd.DataFrame) -> Figure:
    """Draw the bytes that a rank holds at its fullest, by part, against a budget of bytes."""
    held = elastic_memory.table(rows)
    limit = int(rows[rows.metric == "budget"].value.iloc[0])
    most = held.total.groupby("method", sort=False).max() * elastic_memory.MB
    few = ", ".join(elastic_memory.names(most[most <= limit].index))
    return elastic_memory.picture(held, limit, f"Within {limit / 1e6:.1f} MB a rank: {few}")


WAYS = {"bert": "words and classes", "words": "words alone", "vit": "pictures"}


def pretraining(rows: pd.DataFrame) -> Figure:
    """Draw pretraining losses, with the points that a start from them is worth."""
    parts = {what: own for what, own in rows.groupby("preset", sort=False)}
    fig, axes = plt.subplots(1, len(parts), figsize=(3.6 * len(parts), 3), squeeze=False)
    best = []
    for ax, (what, own) in zip(axes[0], parts.items(), strict=True):
        curve = own[own.metric == "loss_curve"].iloc[0]
        ax.plot(np.linspace(0, 100, len(curve.value)), curve.value, color=viz.colour("elastic"))
        scores = own[own.metric == "finetuned"].set_index("start").value.astype(float)
        gained = scores["pretrained"] - scores.drop("pretrained").max()
        best.append(f"{WAYS.get(what, what)} {gained:+.1f}")
        ax.set(xlabel="percent of pretraining", ylabel="loss", title=WAYS.get(what, what))
    said = f"Points after a short fine-tuning, one seed: {', '.join(best)}"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig


# ---- target propagation


def inverse(rows: pd.DataFrame) -> Figure:
    """Draw the length of learned feedback over the weights', as published and exact."""
    own = rows[rows.metric.isin(["angle", "norm_ratio"])].astype({"value": float})
    fig, axes = plt.subplots(1, 2, figsize=viz.WIDE)
    wide = {
        metric: own[own.metric == metric].pivot(index="block", columns="method", values="value")
        for metric in ("angle", "norm_ratio")
    }
    said = {"angle": "angle to W^T, degrees", "norm_ratio": "|B| / |W|"}
    for ax, (metric, table) in zip(axes, wide.items(), strict=True):
        colours = [viz.colour(method) for method in table]
        table.plot.bar(ax=ax, rot=0, color=colours, legend=metric == "angle")
        ax.set(ylabel=said[metric], xlabel="")
    axes[0].legend([viz.label(m) for m in wide["angle"]], frameon=False)
    axes[1].axhline(1, color="0.35", lw=1)
    longest = wide["norm_ratio"].max()
    ends = ", ".join(f"{viz.label(m)} up to {longest[m]:.1f}" for m in wide["norm_ratio"])
    fig.suptitle(f"Length of B over W's: {ends}", x=0.01, ha="left", fontweight="bold")
    return fig


def matching(rows: pd.DataFrame) -> Figure:
    """Draw the relative error of targets' gradients over beta, by activation, worst block."""
    own = rows[(rows.metric == "distance") & (rows.beta.notna())].astype({"value": float})
    own = own[own.model == "simple_vgg"]
    worst = own.groupby(["method", "beta"], sort=False).value.max().unstack("method")
    fig, ax = plt.subplots()
    for method, shade in zip(worst, viz.shades(worst.shape[1]), strict=True):
        values = worst[method].clip(lower=1e-16)
        ax.loglog(worst.index, values, "o-", ms=3, color=shade, label=method)
    ax.set(xlabel="beta", ylabel="relative error of the gradient, worst block")
    ax.set_title("Matched feedback errs as beta; the published ELU has a floor")
    ax.legend(frameon=False, fontsize=7)
    return fig


def dtp_accuracy(rows: pd.DataFrame) -> Figure | None:
    """Draw the contrasts named before the runs on CIFAR-10: verdicts, intervals of the paired t."""
    gaps = dtp_tables.contrast_gaps(rows)
    return dtp_tables.draw_contrasts(gaps) if gaps else None


def dtp_speed(rows: pd.DataFrame) -> Figure:
    """Draw how many times as fast as the published form a step is, with least and most round."""
    own = rows[rows.metric.isin(["over published form", "least", "most"])]
    shown = own.pivot_table(
        index="method", columns="metric", values="value", sort=False, aggfunc="first"
    ).astype(float)
    gain = shown["over published form"]
    fig, ax = plt.subplots(figsize=(6, 0.8 + 0.28 * len(gain)))
    shades = {"closed": "dtp", "expected": "dtp_exact"}
    colours = [viz.colour(shades.get(kind.split()[0], "dtp_fixed")) for kind in gain.index]
    ax.barh(list(gain.index), gain, color=colours)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    said = f"Closed form on two processes: {gain['closed x2']:.1f} times as fast"
    ax.set(xlabel="times as fast as the published form in one process", title=said)
    return fig


def dtp_angles(rows: pd.DataFrame) -> Figure:
    """Draw angles of targets to backprop on LeNet, published and ours, by kind of feedback."""
    own = rows[(rows.metric == "angle") & (rows.model == "lenet")].astype({"value": float})
    means = own.groupby(["method", "feedback", "block"], sort=False).value.mean().unstack("method")
    theirs = published("dtp_angles").set_index(["feedback", "block"])[["angle"]]
    beside = theirs.join(means)[["angle", "published", "exact"]]
    fig, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True)
    colours = ["0.6", viz.colour("dtp"), viz.colour("dtp_exact")]
    for ax, feedback in zip(axes, ["random", "trained", "copied"], strict=True):
        last = feedback == "copied"
        beside.loc[feedback].plot.bar(ax=ax, rot=0, legend=last, color=colours)
        ax.set(title=feedback, xlabel="")
    axes[0].set_ylabel("angle to backprop, degrees")
    axes[2].legend(["published", "ours, as published", "ours, exact"], frameon=False)
    left = [beside.loc[("trained", "conv_0"), form] for form in ("published", "exact")]
    said = f"Trained, first block: {left[0]:.0f} degrees as published, {left[1]:.0f} exact"
    fig.suptitle(said, x=0.01, ha="left", fontweight="bold")
    return fig

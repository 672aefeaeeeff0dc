"""The lines of a run's log: what was decided, whether features are stored, what was trained.

[epoch 2 step 320] TRANSFORM frozen 4->7/12  pipeline 2->1  replicas 1->2 (+ranks 1)
  micro-batches 8->1  batch 64  units 3+...  cache on
"""

from collections.abc import Sequence
from typing import Any

from alkit.elastic.decision import Decision
from alkit.elastic.held import Held
from alkit.elastic.layout import Layout


def decided(decision: Decision, before: Decision | None, layers: int) -> str:
    """Return a decision beside the one before it; None at the first."""
    layout, old = decision.layout, None if before is None else before.layout

    def change(name: str, now: Any, then: Any) -> str:
        return f"{name} {now}" if then in (None, now) else f"{name} {then}->{now}"

    parts = [
        change("frozen", f"{layout.frozen}", old and f"{old.frozen}") + f"/{layers}",
        change("pipeline", layout.stages, old and old.stages),
        change("replicas", layout.replicas, old and old.replicas) + _new_ranks(layout, old),
        change("micro-batches", layout.micro, old and old.micro),
        change("batch", layout.batch, old and old.batch),
        "units " + "+".join(map(str, layout.counts)),
        "cache " + ("on" if decision.cached else "off"),
    ]
    return f"[epoch {decision.epoch} step {decision.step}] TRANSFORM " + "  ".join(parts)


def held(ranks: Sequence[Held]) -> str:
    """Return the bytes of every rank, with their parts."""
    return "BYTES " + "  ".join(f"rank {n} {r.total:,} ({r})" for n, r in enumerate(ranks))


def trained(row: dict[str, Any]) -> str:
    """Return a segment's row of the history."""
    seen = row["hits"] + row["advanced"] + row["misses"]
    hit = f"  cache hit {row['hits'] / seen:.2f}" if seen else ""
    names = ("frozen_s", "read_s", "pipe_s", "reduce_s", "update_s")
    phases = " ".join(f"{name} {row[name]:.2f}" for name in names)
    return (
        f"[epoch {row['epoch']} step {row['step']}] TRAIN loss {row['loss']:.4f}"
        f"  samples_per_s {row['samples_per_s']:.0f}  train_s {row['train_s']:.2f} ({phases})"
        f"  change_s {row['change_s']:.2f}{hit}"
    )


def _new_ranks(layout: Layout, before: Layout | None) -> str:
    if before is None or before.ranks >= layout.ranks:
        return ""
    return f" (+ranks {','.join(map(str, range(before.ranks, layout.ranks)))})"

"""The record of a transformation: what rank 0 decides, and every rank obeys.

A typed dictionary instead of a row of 50 floats, checked where it arrives:

    [epoch 2 step 320] TRANSFORM frozen 4->7/12  pipeline 2->1  replicas 1->2 (+ranks 1)
      micro-batches 8->1  batch 64  stages 3+... units  largest 0.42 of 0.71 M
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

__all__ = ["VERSION", "MessageError", "Transform"]

VERSION = 1


class MessageError(ValueError):
    """A control message that cannot be obeyed."""


@dataclass(frozen=True)
class Transform:
    """One decision.

    Attributes:
        number: of the decision, from 0.
        epoch, step, samples: when.
        frozen: layers, now.
        counts, start, replicas, micro, batch, lr_scale: see `alkit.elastic.plan.Plan`.
        cached: whether outputs of the frozen layers are stored.
        generation: of the store: how often the frozen layers have changed.
        norms: gradient norms of all layers since the decision before; none at the first.
    """

    number: int
    epoch: int
    step: int
    samples: int
    frozen: int
    counts: list[int]
    start: int
    replicas: int
    micro: int
    batch: int
    lr_scale: float
    cached: bool
    generation: int
    norms: list[float]
    version: int = VERSION

    def plain(self) -> dict[str, Any]:
        """Return it as numbers, strings and lists."""
        return asdict(self)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "Transform":
        """Return the record that `plain` made.

        Raises:
            MessageError: another version, or fields that are missing, unknown or out of range.
        """
        if plain.get("version") != VERSION:
            raise MessageError(
                f"a control message of version {plain.get('version')}; this is version {VERSION}:"
                " run the same alkit on all ranks"
            )
        names = {field.name for field in fields(Transform)}
        if set(plain) != names:
            odd = ", ".join(sorted(set(plain) ^ names))
            raise MessageError(f"a control message with other fields than this one's: {odd}")
        made = Transform(**plain)
        low = {"frozen": 0, "start": 0, "replicas": 1, "micro": 1, "batch": 1, "number": 0}
        for name, least in low.items():
            value = getattr(made, name)
            if not isinstance(value, int) or value < least:
                raise MessageError(f"{name} is {value!r}: a whole number from {least} on is due")
        if not made.counts or min(made.counts) < 0:
            raise MessageError(f"counts are {made.counts}: give units of each stage")
        return made

    @property
    def ranks(self) -> int:
        """Number of ranks that work from now on: 0 to `ranks` - 1."""
        return len(self.counts) * self.replicas

    def line(self, before: "Transform | None", layers: int) -> str:
        """Return it for people, next to what was before."""

        def change(name: str, now: Any, then: Any) -> str:
            return f"{name} {now}" if then in (None, now) else f"{name} {then}->{now}"

        old = before
        parts = [
            change("frozen", f"{self.frozen}", old and f"{old.frozen}") + f"/{layers}",
            change("pipeline", len(self.counts), old and len(old.counts)),
            change("replicas", self.replicas, old and old.replicas) + self._new_ranks(old),
            change("micro-batches", self.micro, old and old.micro),
            change("batch", self.batch, old and old.batch),
            "units " + "+".join(map(str, self.counts)),
            "cache " + ("on" if self.cached else "off"),
        ]
        return f"[epoch {self.epoch} step {self.step}] TRANSFORM " + "  ".join(parts)

    def _new_ranks(self, before: "Transform | None") -> str:
        if before is None or before.ranks >= self.ranks:
            return ""
        return f" (+ranks {','.join(map(str, range(before.ranks, self.ranks)))})"

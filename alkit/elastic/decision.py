"""What rank 0 decides before a segment, and every rank obeys.

A typed dictionary instead of a row of 50 floats, checked where it arrives.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from alkit.elastic.plan import Plan

__all__ = ["VERSION", "Decision", "MessageError"]

VERSION = 1
LEAST = {"frozen": 0, "start": 0, "replicas": 1, "micro": 1, "batch": 1, "number": 0}


class MessageError(ValueError):
    """A control message that cannot be obeyed."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision.

    Attributes:
        plan: the layout from now on.
        number: of the decision, from 0.
        epoch, step, samples: when.
        cached: whether outputs of the frozen layers are stored.
        generation: of the store: how often the frozen layers have changed.
        norms: gradient norms of all layers since the decision before; none at the first.
    """

    plan: Plan
    number: int
    epoch: int
    step: int
    samples: int
    cached: bool
    generation: int
    norms: list[float]

    @property
    def frozen(self) -> int:
        """Layers that are frozen from now on."""
        return self.plan.frozen

    def plain(self) -> dict[str, Any]:
        """Return it as numbers, strings and lists, the plan's among the others."""
        own = asdict(self)
        plan = own.pop("plan")
        return own | plan | {"counts": list(plan["counts"]), "version": VERSION}

    @staticmethod
    def read(plain: Mapping[str, Any]) -> "Decision":
        """Return the decision that `plain` was made of.

        Raises:
            MessageError: another version, or fields that are missing, unknown or out of range.
        """
        if plain.get("version") != VERSION:
            raise MessageError(
                f"a control message of version {plain.get('version')}; this is version {VERSION}:"
                " run the same alkit on all ranks"
            )
        of_plan = {field.name for field in fields(Plan)}
        own = {field.name for field in fields(Decision)} - {"plan"}
        if odd := set(plain) ^ (of_plan | own | {"version"}):
            raise MessageError(
                f"a control message with other fields than this one's: {', '.join(sorted(odd))}"
            )
        for name, least in LEAST.items():
            value = plain[name]
            if not isinstance(value, int) or value < least:
                raise MessageError(f"{name} is {value!r}: a whole number from {least} on is due")
        if not plain["counts"] or min(plain["counts"]) < 0:
            raise MessageError(f"counts are {plain['counts']}: give units of each stage")
        plan = {name: plain[name] for name in of_plan} | {"counts": tuple(plain["counts"])}
        return Decision(plan=Plan(**plan), **{name: plain[name] for name in own})

"""What the server knows of one device, whether it is connected or not."""

from dataclasses import dataclass, field

from alkit.split.greeting import Greeting
from alkit.split.halves import Saved, Tail
from alkit.split.link import Link
from alkit.split.pools import Pool


@dataclass
class Member:
    """A device as the server knows it, connected or not.

    Attributes:
        choice: cut and micro-batches of its rounds; planned: the planner has made it.
        link, greeting: of its connection, and what it said then.
        known, saved: optimisers, by round and cut, that the device has, and the tail's.
        tail: its own.
        pool: where its tail computes.
    """

    index: int
    samples: int
    choice: tuple[int, int]
    pool: Pool
    planned: bool = False
    link: Link | None = None
    greeting: Greeting | None = None
    known: set[tuple[int, int]] = field(default_factory=set)
    saved: Saved = field(default_factory=dict)
    tail: Tail | None = None

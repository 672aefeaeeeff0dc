"""Seeds and generators as functions of a key: numbers never depend on timing or order."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_LENT = threading.RLock()  # torch's generator, to one thread at a time


def seed_for(*key: int | str) -> int:
    """Hash a key such as (seed, stage, batch, micro) to 63 bits; near keys give unrelated seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator on `device`, seeded by the hash of `key`."""
    return torch.Generator(device).manual_seed(seed_for(*key))


@contextmanager
def drawing_from(state: Tensor) -> Iterator[None]:
    """Draw from a state of a generator, which moves on; the generator of torch stays put."""
    with _LENT, torch.random.fork_rng(devices=()):
        torch.set_rng_state(state)
        yield
        state.copy_(torch.get_rng_state())

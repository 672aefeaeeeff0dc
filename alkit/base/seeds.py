"""Seeds and generators as functions of a key: what comes out never depends on timing or order."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def seed_for(*key: int | str) -> int:
    """Hash a key such as (seed, stage, batch, micro) to 63 bits; near keys give unrelated seeds."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(*key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a fresh generator on `device`, seeded by the hash of `key`."""
    return torch.Generator(device).manual_seed(seed_for(*key))


_LENT = threading.RLock()  # torch's generator, to one thread at a time


@contextmanager
def drawing_from(state: Tensor) -> Iterator[None]:
    """Let torch's generator go on from a state, which is kept, and have its own back.

    Args:
        state: of `torch.Generator.get_state`; changed in place.
    """
    with _LENT:
        before = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            yield
        finally:
            state.copy_(torch.get_rng_state())
            torch.set_rng_state(before)

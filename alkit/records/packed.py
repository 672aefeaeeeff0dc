"""Which samples were right, as short text in a record; and the label of a record's row."""

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor


def label(row: Any) -> str:
    """Return the label of a row of records: method and recipe."""
    recipe = getattr(row, "recipe", "")
    return f"{row.method} {recipe if isinstance(recipe, str) else ''}".strip()


def pack(correct: Tensor) -> str:
    """Write 0/1 values as text, eight a byte."""
    bits = correct.to(torch.bool).cpu().numpy()
    return base64.b64encode(np.packbits(bits).tobytes()).decode("ascii")


def unpack(text: str, n: int) -> np.ndarray:
    """Read what `pack` wrote: float (n,)."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=n).astype(float)

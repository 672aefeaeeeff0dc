"""Image files as bytes of colours."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from alkit.data.extras import extra


def decode(name: str, content: bytes, path: Path, size: int) -> np.ndarray:
    """Return RGB bytes (3, size, size) of an image file; `name` and `path` are for messages."""
    with extra("vision", "decoding images"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(content)) as image:
            # Pillow widens the filter when it shrinks, as torchvision's Resize of the publication
            small = _bytes(image).convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(
            f"{path}: {name} is no readable image ({error}); fetch it again or remove it"
        ) from error
    return np.asarray(small).transpose(2, 0, 1)


def _bytes(image: Any) -> Any:
    """Scale what has more than eight bits a pixel, which Pillow would clip to white."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return image
    from PIL import Image

    values = np.asarray(image, dtype=np.float64)
    # 16 bits are 16 bits, however dark; of the wider forms only the values tell
    limits = {"I": (255.0, 65535.0), "F": (1.0, 65535.0)}.get(image.mode, (65535.0,))
    top = next((each for each in limits if values.max() <= each), limits[-1])
    return Image.fromarray((values / top * 255.0).clip(0, 255).astype(np.uint8))

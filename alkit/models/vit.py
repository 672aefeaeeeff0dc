"""The vision transformer as a list of units (Dosovitskiy et al. 2020).

    embedding | attention | mlp | attention | mlp | ... | norm | head

An attention and the mlp after it are a layer; each has its norm before it (pre-norm) and its own
residual, so a cut between units never falls inside a skip connection and one tensor crosses it.

B images, C channels, H x W pixels, T tokens (1 class token and the patches), D width.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ViTSizes(NamedTuple):
    """Sizes; those of ViT-B/16 by default."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    mlp: int = 3072
    patch: int = 16
    image: int = 224
    channels: int = 3
    classes: int = 1000
    dropout: float = 0.1

    @property
    def tokens(self) -> int:
        """Number of tokens: the patches and the class token."""
        return 1 + (self.image // self.patch) ** 2


PUBLISHED = {
    "B/16": ViTSizes(),
    "B/32": ViTSizes(patch=32),
    "L/16": ViTSizes(24, 1024, 16, 4096),
    "L/32": ViTSizes(24, 1024, 16, 4096, patch=32),
    "H/14": ViTSizes(32, 1280, 16, 5120, patch=14),
}


class Embedding(nn.Module):
    """Cut images into patches, one vector each, after a class token: (B, C, H, W) -> (B, T, D)."""

    def __init__(self, sizes: ViTSizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(sizes.channels, sizes.width, sizes.patch, stride=sizes.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(torch.zeros(1, sizes.tokens, sizes.width))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the vectors with their positions."""
        patches_BPD = self.patches(x_BCHW).flatten(2).transpose(1, 2)
        token_B1D = self.token.expand(len(x_BCHW), -1, -1)
        return self.dropout(torch.cat([token_B1D, patches_BPD], dim=1) + self.positions)


class Attention(nn.Module):
    """x + attention(norm(x))."""

    def __init__(self, sizes: ViTSizes) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.norm = nn.LayerNorm(sizes.width, eps=1e-6)
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.mix = nn.Linear(sizes.width, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        qkv = self.qkv(self.norm(x_BTD)).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen_BTD = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x_BTD + self.dropout(self.mix(seen_BTD))


class MLP(nn.Module):
    """x + mlp(norm(x))."""

    def __init__(self, sizes: ViTSizes) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.width, eps=1e-6)
        self.up, self.down = nn.Linear(sizes.width, sizes.mlp), nn.Linear(sizes.mlp, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        inner = self.dropout(F.gelu(self.up(self.norm(x_BTD))))
        return x_BTD + self.dropout(self.down(inner))


class Head(nn.Module):
    """Class scores (B, classes) of the class token."""

    def __init__(self, sizes: ViTSizes) -> None:
        super().__init__()
        self.scores = nn.Linear(sizes.width, sizes.classes)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, classes)."""
        return self.scores(x_BTD[:, 0])


def vit(sizes: ViTSizes | None = None, *, seed: int = 0) -> list[nn.Module]:
    """Return the units: embedding, attention and mlp of every layer, norm, head.

    Raises:
        ValueError: a width that does not divide into heads, or an image that does not divide into
            patches.
    """
    sizes = sizes or ViTSizes()
    for what, whole, part in (
        ("width", sizes.width, sizes.heads),
        ("image", sizes.image, sizes.patch),
    ):
        if whole % part:
            raise ValueError(f"{what} {whole} is not a multiple of {part}")
    torch.manual_seed(seed)
    layers = [unit for _ in range(sizes.layers) for unit in (Attention(sizes), MLP(sizes))]
    embedding, norm = Embedding(sizes), nn.LayerNorm(sizes.width, eps=1e-6)
    units: list[nn.Module] = [embedding, *layers, norm, Head(sizes)]
    nn.init.trunc_normal_(embedding.positions, std=0.02)
    for unit in units:
        unit.apply(_initialise)
    return units


def load_torchvision(units: list[nn.Module], state: Mapping[str, Tensor]) -> int:
    """Put the weights of a torchvision ViT into the units; return how many tensors were taken.

    A head of another number of classes stays as it is.

    Raises:
        ValueError: a tensor is missing, or has another shape; names the first.
    """
    names = _torchvision_names((len(units) - 3) // 2)
    taken = 0
    for index, unit in enumerate(units):
        for own, tensor in unit.state_dict().items():
            name = names[index, own]
            if name not in state:
                raise ValueError(f"no tensor {name}: are these weights of a torchvision ViT?")
            found = state[name]
            if found.shape != tensor.shape:
                if index == len(units) - 1:
                    continue
                raise ValueError(f"{name} is {tuple(found.shape)}, not {tuple(tensor.shape)}")
            tensor.copy_(found)
            taken += 1
    return taken


def _torchvision_names(layers: int) -> dict[tuple[int, str], str]:
    """Return torchvision's name for the tensor `own` of unit `index`."""
    names = {
        (0, "token"): "class_token",
        (0, "positions"): "encoder.pos_embedding",
        (0, "patches.weight"): "conv_proj.weight",
        (0, "patches.bias"): "conv_proj.bias",
    }
    for layer in range(layers):
        block, attention, mlp = (
            f"encoder.layers.encoder_layer_{layer}.",
            1 + 2 * layer,
            2 + 2 * layer,
        )
        for kind in ("weight", "bias"):
            names[attention, f"norm.{kind}"] = f"{block}ln_1.{kind}"
            names[attention, f"qkv.{kind}"] = f"{block}self_attention.in_proj_{kind}"
            names[attention, f"mix.{kind}"] = f"{block}self_attention.out_proj.{kind}"
            names[mlp, f"norm.{kind}"] = f"{block}ln_2.{kind}"
            names[mlp, f"up.{kind}"] = f"{block}mlp.0.{kind}"
            names[mlp, f"down.{kind}"] = f"{block}mlp.3.{kind}"
    for kind in ("weight", "bias"):
        names[1 + 2 * layers, kind] = f"encoder.ln.{kind}"
        names[2 + 2 * layers, f"scores.{kind}"] = f"heads.head.{kind}"
    return names


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)

"""BERT and the vision transformer as lists of units (Devlin et al. 2018, Dosovitskiy et al. 2020).

    bert_classifier    embedding | attention | mlp | attention | mlp | ... | pooler | scores
    vit_classifier     embedding | attention | mlp | attention | mlp | ... | norm | head

Units of BERT hand on (h_BTD, mask_BT): vectors, and true at real tokens. Units of ViT: h_BTD.
B batch, T tokens, D width, H heads.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from alkit.base.seeds import drawing_from
from alkit.elastic.network import Network


class BertSizes(NamedTuple):
    """Sizes; those of BERT-base with three layers by default."""

    layers: int = 3
    width: int = 768
    heads: int = 12
    mlp: int = 3072
    vocabulary: int = 30_522
    tokens: int = 512
    segments: int = 2
    dropout: float = 0.1
    std: float = 0.02  # of initial weights


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


class Attention(nn.MultiheadAttention):
    """Every token looks at all real ones; without a mask that is all of them."""

    def forward(self, h_BTD: Tensor, mask_BT: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """(B, T, D) -> (B, T, D)."""
        absent_BT = None if mask_BT is None else ~mask_BT
        three = h_BTD, h_BTD, h_BTD
        return super().forward(*three, key_padding_mask=absent_BT, need_weights=False)[0]


class Residual(nn.Module):
    """Half an encoder layer: norm(h + f(h)) in BERT, or h + f(norm(h)) in ViT."""

    def __init__(self, sizes: BertSizes | ViTSizes, f: nn.Module) -> None:
        super().__init__()
        self.f, self.pre_norm = f, isinstance(sizes, ViTSizes)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-6 if self.pre_norm else 1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, inputs: Any) -> Any:
        """(B, T, D) -> (B, T, D); all else, first the mask, stays as it is."""
        h_BTD, *more = (inputs,) if isinstance(inputs, Tensor) else inputs
        read: list[Tensor] = more[: isinstance(self.f, Attention)]
        if self.pre_norm:
            h_BTD = h_BTD + self.dropout(self.f(self.norm(h_BTD), *read))
        else:
            h_BTD = self.norm(h_BTD + self.dropout(self.f(h_BTD, *read)))
        return (h_BTD, *more) if more else h_BTD


class Words(nn.Module):
    """Words, positions and segments: (tokens_BT, segments_BT, mask_BT, ...) -> hidden."""

    def __init__(self, sizes: BertSizes) -> None:
        super().__init__()
        self.words = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.tokens, sizes.width)
        self.segments = nn.Embedding(sizes.segments, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-12)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the sum of the three, normalised."""
        tokens_BT, segments_BT, *more = inputs
        at_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        h_BTD = self.words(tokens_BT) + self.segments(segments_BT) + self.positions(at_T)
        return self.dropout(self.norm(h_BTD)), *more


class Patches(nn.Module):
    """Cut images into patches, one vector each, after a class token: (B, C, H, W) -> (B, T, D)."""

    def __init__(self, sizes: ViTSizes) -> None:
        super().__init__()
        tokens = 1 + (sizes.image // sizes.patch) ** 2
        self.patches = nn.Conv2d(sizes.channels, sizes.width, sizes.patch, stride=sizes.patch)
        self.token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, sizes.width))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Return the vectors with their positions."""
        patches_BPD = self.patches(x_BCHW).flatten(2).transpose(1, 2)
        token_B1D = self.token.expand(len(x_BCHW), -1, -1)
        return self.dropout(torch.cat([token_B1D, patches_BPD], dim=1) + self.positions)


class First(nn.Module):
    """The first token of every text or picture: (B, T, D) -> (B, D)."""

    def forward(self, inputs: Any) -> Tensor:
        """Return its vectors."""
        return (inputs if isinstance(inputs, Tensor) else inputs[0])[:, 0]


def bert_classifier(sizes: BertSizes, classes: int = 2, *, seed: int = 0) -> Network:
    """Return BERT for classes; x is (tokens_BT, segments_BT, mask_BT), y int64 (B,)."""
    with drawing_from(torch.Generator().manual_seed(seed).get_state()):
        dense, dropout = nn.Linear(sizes.width, sizes.width), nn.Dropout(sizes.dropout)
        pooler = nn.Sequential(First(), dense, nn.Tanh(), dropout)
        units = [Words(sizes), *_layers(sizes), pooler, nn.Linear(sizes.width, classes)]
        _draw(units, partial(nn.init.normal_, std=sizes.std))
    return Network(units, sizes.layers, nn.functional.cross_entropy, seed=seed)


def vit_classifier(sizes: ViTSizes | None = None, *, seed: int = 0) -> Network:
    """Return a vision transformer with cross-entropy; x is (B, C, H, W), y int64 (B,)."""
    sizes = sizes or ViTSizes()
    with drawing_from(torch.Generator().manual_seed(seed).get_state()):
        embedding, norm = Patches(sizes), nn.LayerNorm(sizes.width, eps=1e-6)
        head = nn.Sequential(First(), nn.Linear(sizes.width, sizes.classes))
        units = [embedding, *_layers(sizes), norm, head]
        draw = partial(nn.init.trunc_normal_, std=0.02)
        draw(embedding.positions)
        _draw(units, draw)
    return Network(units, sizes.layers, nn.functional.cross_entropy, seed=seed)


def _layers(sizes: BertSizes | ViTSizes) -> list[nn.Module]:
    """Return attention and two linear maps of every layer; BERT drops attention weights."""
    is_vit, width, halves = isinstance(sizes, ViTSizes), sizes.width, list[nn.Module]()
    of_weights, inside = (0.0, sizes.dropout) if is_vit else (sizes.dropout, 0.0)
    for _ in range(sizes.layers):
        up, down = nn.Linear(width, sizes.mlp), nn.Linear(sizes.mlp, width)
        halves.append(Attention(width, sizes.heads, of_weights, batch_first=True))
        halves.append(nn.Sequential(up, nn.GELU(), nn.Dropout(inside), down))
    return [Residual(sizes, half) for half in halves]


def _draw(units: list[nn.Module], draw: Callable[[Tensor], Any]) -> None:
    """Draw the weights of linear maps and embeddings, one after the other; their biases are 0."""
    for module in nn.ModuleList(units).modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            draw(module.weight)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.MultiheadAttention):  # its biases are 0
            draw(module.in_proj_weight)

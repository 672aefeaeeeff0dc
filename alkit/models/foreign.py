"""Hugging Face's networks as lists of blocks; their own forwards branch, so no graph shows them.

BERT    embeddings | an encoder layer each | pooler | head
ViT     patches and class token | an encoder layer each | norm | head
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

BERT = "input_ids", "attention_mask", "token_type_ids", "position_ids"


class _Inputs(nn.Module):
    """What a tokenizer or an image processor makes, or its first tensors -> the first hidden."""

    def __init__(self, embeddings: nn.Module, *names: str) -> None:
        super().__init__()
        self.embeddings, self.names = embeddings, names

    def forward(self, batch: Any) -> Any:
        if not isinstance(batch, Mapping):
            several = batch if isinstance(batch, list | tuple) else (batch,)
            batch = dict(zip(self.names[: len(several)], several, strict=True))
        found = {name: value for name, value in batch.items() if value is not None}
        if "input_ids" not in found:
            return self.embeddings(**found)
        mask = found.pop("attention_mask", torch.ones_like(found["input_ids"])).bool()
        return self.embeddings(**found), mask


class _Encoded(nn.Module):
    """An encoder layer: (hidden (B, T, D), mask (B, T), true at real tokens) -> the same."""

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__()
        self.layer, self.config = layer, config

    def forward(self, text: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        from transformers.masking_utils import create_bidirectional_mask

        hidden, mask = text
        seen = create_bidirectional_mask(self.config, hidden, attention_mask=mask)
        return self.layer(hidden, seen), mask


class _Read(nn.Module):
    """What the network reads off: the pooler's of (hidden, mask), or the normed class token's."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Tensor:
        return self.module(x)[:, 0] if isinstance(x, Tensor) else self.module(x[0])


def _bert(net: Any) -> list[nn.Module]:
    layers = [_Encoded(layer, net.config) for layer in net.bert.encoder.layer]
    head = nn.Sequential(net.dropout, net.classifier)
    return [_Inputs(net.bert.embeddings, *BERT), *layers, _Read(net.bert.pooler), head]


def _vit(net: Any) -> list[nn.Module]:
    first, last = _Inputs(net.vit.embeddings, "pixel_values"), _Read(net.vit.layernorm)
    return [first, *net.vit.layers, last, net.classifier]


CUTS: dict[str, Callable[[Any], list[nn.Module]]] = {
    "BertForSequenceClassification": _bert,
    "ViTForImageClassification": _vit,
}

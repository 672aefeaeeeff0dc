"""Networks of torchvision and Hugging Face as lists of blocks, cut where their structure is.

    ResNet    stem | a residual block each | head
    VGG       convolutions up to a pooling each | fully connected layers one by one
    ViT       patches and class token | an encoder layer each | norm | head
    BERT      embeddings | an encoder layer each | pooler | head

The blocks hold the network's own modules, so training them trains the network, and a loaded
checkpoint of it is theirs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Text = tuple[Tensor, Tensor]  # hidden (B, T, D), mask (B, T), true at real tokens


def cut(network: nn.Module) -> list[nn.Module] | None:
    """Return the blocks of a network that is known here, else None."""
    for kind in type(network).__mro__:
        found = CUTS.get((kind.__module__.split(".")[0], kind.__name__))
        if found is not None:
            return found(network)
    return None


def _resnet(net: Any) -> list[nn.Module]:
    stem = nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    residual = [
        block for layer in (net.layer1, net.layer2, net.layer3, net.layer4) for block in layer
    ]
    return [stem, *residual, nn.Sequential(net.avgpool, nn.Flatten(1), net.fc)]


def _vgg(net: Any) -> list[nn.Module]:
    dense = _until(net.classifier, nn.Dropout)
    first = nn.Sequential(net.avgpool, nn.Flatten(1), *next(dense))
    return [*_until(net.features, nn.MaxPool2d), first, *dense]


def _until(modules: nn.Module, last: type[nn.Module]) -> Iterator[nn.Sequential]:
    """Yield the modules in groups that end in one of this type; what is left is a group too."""
    group: list[nn.Module] = []
    for module in modules.children():
        group.append(module)
        if isinstance(module, last):
            yield nn.Sequential(*group)
            group = []
    if group:
        yield nn.Sequential(*group)


class _Patches(nn.Module):
    """Images (B, C, H, W) -> patches, a class token before them, and positions: (B, T, D)."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.project, self.dropout = net.conv_proj, net.encoder.dropout
        self.class_token, self.positions = net.class_token, net.encoder.pos_embedding

    def forward(self, x: Tensor) -> Tensor:
        patches = self.project(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        return self.dropout(tokens + self.positions)


class _ClassToken(nn.Module):
    """norm(x) at the class token: (B, T, D) -> (B, D)."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)[:, 0]


def _vit(net: Any) -> list[nn.Module]:
    return [_Patches(net), *net.encoder.layers, _ClassToken(net.encoder.ln), net.heads]


class _Embedded(nn.Module):
    """A tokenizer's dictionary, or (tokens, mask), or tokens alone -> (hidden, mask)."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, batch: Any) -> Text:
        if isinstance(batch, Tensor):
            batch = {"input_ids": batch}
        elif not isinstance(batch, dict):
            batch = dict(zip(("input_ids", "attention_mask"), batch, strict=True))
        tokens = batch["input_ids"]
        mask = batch.get("attention_mask", torch.ones_like(tokens)).bool()
        return self.embeddings(input_ids=tokens, token_type_ids=batch.get("token_type_ids")), mask


class _Encoded(nn.Module):
    """An encoder layer: (hidden, mask) -> (hidden, mask)."""

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__()
        self.layer, self.config = layer, config

    def forward(self, text: Text) -> Text:
        from transformers.masking_utils import create_bidirectional_mask

        hidden, mask = text
        seen = create_bidirectional_mask(
            config=self.config, inputs_embeds=hidden, attention_mask=mask
        )
        return self.layer(hidden, seen), mask


class _Pooled(nn.Module):
    """What the network's pooler makes of (hidden, mask): (B, D)."""

    def __init__(self, pooler: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, text: Text) -> Tensor:
        return self.pooler(text[0])


def _bert(net: Any) -> list[nn.Module]:
    layers = [_Encoded(layer, net.config) for layer in net.bert.encoder.layer]
    head = nn.Sequential(net.dropout, net.classifier)
    return [_Embedded(net.bert.embeddings), *layers, _Pooled(net.bert.pooler), head]


def _hf_vit(net: Any) -> list[nn.Module]:
    return [net.vit.embeddings, *net.vit.layers, _ClassToken(net.vit.layernorm), net.classifier]


CUTS: dict[tuple[str, str], Callable[[Any], list[nn.Module]]] = {
    ("torchvision", "ResNet"): _resnet,
    ("torchvision", "VGG"): _vgg,
    ("torchvision", "VisionTransformer"): _vit,
    ("transformers", "BertForSequenceClassification"): _bert,
    ("transformers", "ViTForImageClassification"): _hf_vit,
}

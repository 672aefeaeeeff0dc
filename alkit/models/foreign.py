"""Networks of torchvision and Hugging Face as lists of blocks, cut where their structure is.

    ResNet    stem | a residual block each | head
    VGG       convolutions up to a pooling each | fully connected layers one by one
    ViT       patches and class token | an encoder layer each | norm | head
    BERT      embeddings | an encoder layer each | pooler | head

The blocks hold the network's own modules, so training them trains the network, and a loaded
checkpoint of it is theirs.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Text = tuple[Tensor, Tensor]  # hidden (B, T, D), mask (B, T), true at real tokens


def cut(network: nn.Module) -> list[nn.Module] | None:
    """Return the blocks of a network that is known here, else None.

    A subclass with methods of its own for those that are known computes something else.
    """
    for kind in type(network).__mro__:
        found = CUTS.get((kind.__module__.split(".")[0], kind.__name__))
        if found is not None:
            return None if _changed(network, kind) else found(network)
    return None


def _changed(network: nn.Module, kind: type) -> bool:
    own = {name for name, value in vars(kind).items() if callable(value)} - {"__init__"}
    return any(
        name in vars(network) or getattr(type(network), name) is not getattr(kind, name)
        for name in own
    )


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
        elif not isinstance(batch, Mapping):
            batch = dict(zip(("input_ids", "attention_mask"), batch, strict=True))
        given = _named(batch, "input_ids", "attention_mask", "token_type_ids", "position_ids")
        mask = given.pop("attention_mask", torch.ones_like(given["input_ids"])).bool()
        return self.embeddings(**given), mask


class _Pixels(nn.Module):
    """Images (B, C, H, W), or a dictionary of them -> (B, T, D)."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, batch: Any) -> Tensor:
        given = batch if isinstance(batch, Mapping) else {"pixel_values": batch}
        return self.embeddings(**_named(given, "pixel_values"))


def _named(batch: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return what a batch has of these, in any order.

    Raises:
        ValueError: it has something else, which no block would be given.
    """
    found = {name: value for name, value in batch.items() if value is not None}
    if others := sorted(set(found) - set(names)):
        raise ValueError(f"a batch has {', '.join(others)}: its blocks take {', '.join(names)}")
    return found


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
    first, last = _Pixels(net.vit.embeddings), _ClassToken(net.vit.layernorm)
    return [first, *net.vit.layers, last, net.classifier]


CUTS: dict[tuple[str, str], Callable[[Any], list[nn.Module]]] = {
    ("torchvision", "ResNet"): _resnet,
    ("torchvision", "VGG"): _vgg,
    ("torchvision", "VisionTransformer"): _vit,
    ("transformers", "BertForSequenceClassification"): _bert,
    ("transformers", "ViTForImageClassification"): _hf_vit,
}

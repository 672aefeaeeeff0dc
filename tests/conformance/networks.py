"""Networks as users bring them: none of them was written for alkit."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LSTM", "Plain", "Residual", "UNet", "bert", "resnet18", "timm_resnet", "vit"]


class Plain(nn.Module):
    """A tutorial's: layers by name, called in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one, self.two = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.one(x))
        x = x + F.relu(self.two(x))
        return self.head(x.mean((2, 3)))


class UNet(nn.Module):
    """Down, up, and what was before beside what comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.low = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 8, 2, 2), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.down(x))
        back = self.up(F.relu(self.low(F.max_pool2d(high, 2))))
        return self.out(torch.cat([high, back], 1).mean((2, 3)))


class LSTM(nn.Module):
    """Texts by their last state."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(20, 8, padding_idx=0), nn.LSTM(8, 8, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Any) -> Tensor:
        ids, lengths = x
        states, _ = self.lstm(self.words(ids))
        last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
        return self.out(states.gather(1, last)[:, 0])


def resnet18(classes: int = 7) -> nn.Module:
    from torchvision.models import resnet18 as made

    torch.manual_seed(0)
    return made(num_classes=classes)


def vit(classes: int = 7) -> nn.Module:
    from torchvision.models import VisionTransformer

    torch.manual_seed(0)
    net = VisionTransformer(16, 4, 2, 2, 16, 32, num_classes=classes)
    nn.init.normal_(net.heads.head.weight, std=0.02)  # it comes with zeros
    return net


def bert(classes: int = 3) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=30, intermediate_size=32, num_labels=classes, **sizes)
    return BertForSequenceClassification(config)


def timm_resnet(classes: int = 7) -> nn.Module:
    import timm

    torch.manual_seed(0)
    return timm.create_model("resnet10t", num_classes=classes)

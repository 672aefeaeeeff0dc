"""Networks as they come: trained in place, and by backprop's gradient where a method claims it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.conformance.families import FAMILIES, flat, rows, sgd
from tests.conformance.networks import LSTM, Plain, Residual, UNet, bert, resnet18, timm_resnet, vit

SAMPLES, STEPS, LR = 16, 2, 0.05
EXACT = [each for each in FAMILIES if each.exact]
SEVERAL = ("LSTM", "BERT")  # inputs


def images(side: int, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 3, side, side, generator=generator, dtype=torch.float64)
    return x, torch.arange(SAMPLES) % classes


def texts(kind: str) -> tuple[Any, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 20, (SAMPLES, 6), generator=generator)
    other = torch.ones_like(ids) if kind == "BERT" else torch.full((len(ids),), 6)
    x = {"input_ids": ids, "attention_mask": other} if kind == "BERT" else (ids, other)
    return x, torch.arange(len(ids)) % 3


def quiet_bert() -> nn.Module:
    net = bert()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return net


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, torch.Tensor]]]] = {
    "self.l1, self.l2": (Plain, lambda: (rows(16)[0].double(), rows(16)[1])),
    "residual": (Residual, lambda: images(8)),
    "U-Net": (UNet, lambda: images(8)),
    "resnet18": (resnet18, lambda: images(32, 7)),
    "ViT": (vit, lambda: images(16, 7)),
    "timm": (timm_resnet, lambda: images(32, 7)),
    "LSTM": (LSTM, lambda: texts("LSTM")),
    "BERT": (quiet_bert, lambda: texts("BERT")),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name][0]().double()


def called(net: nn.Module, x: Any) -> torch.Tensor:
    found = net(**x) if isinstance(x, dict) else net(x)
    return getattr(found, "logits", found)


@pytest.mark.parametrize("family", EXACT, ids=[each.method for each in EXACT])
@pytest.mark.parametrize("name", NETWORKS)
def test_its_steps_are_the_plain_loop_s(name, family):
    """Each step takes all samples, so that no order tells methods apart."""
    if family.method == "pipelearn" and name in SEVERAL:
        pytest.skip("split learning sends one tensor")
    net, (x, y) = made(name), NETWORKS[name][1]()
    plain = copy.deepcopy(net).train()
    steps = sgd(plain.parameters(), LR)
    for _ in range(STEPS):
        steps.zero_grad()
        cross_entropy(called(plain, x), y).backward()
        steps.step()
    options = {**family.one, "optimizer": sgd, "lr": LR, "batch_size": len(y), "epochs": STEPS}
    if "micro" in options and any(isinstance(module, nn.BatchNorm2d) for module in net.modules()):
        options["micro"] = 1  # its statistics are of what is normalised together
    record = family.fit(net, (x, y), **options)
    torch.testing.assert_close(flat(net), flat(plain), rtol=0, atol=1e-9)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(record.predict(x), called(net, x), rtol=0, atol=1e-9)

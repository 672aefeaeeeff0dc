"""Networks of torchvision and Hugging Face, cut into blocks that compute what they do."""

import runpy
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, ViTConfig
from transformers import ViTForImageClassification as HuggingFaceViT

import alkit

CLASSES = 3
pictures = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
tokens = torch.randint(1, 40, (6, 7), generator=torch.Generator().manual_seed(1))
mask = torch.ones_like(tokens)
mask[1::2, 4:] = 0
TEXT = {"input_ids": tokens, "attention_mask": mask, "token_type_ids": tokens % 2}


def resnet():
    return torchvision.models.resnet18(num_classes=CLASSES), pictures


def vit():
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}
    net = torchvision.models.VisionTransformer(**sizes, mlp_dim=8, num_classes=CLASSES)
    nn.init.normal_(net.heads.head.weight)  # torchvision's are zeros, which hide all before them
    return net, pictures


SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 8}


def bert():
    config = BertConfig(vocab_size=40, max_position_embeddings=8, num_labels=CLASSES, **SIZES)
    return BertForSequenceClassification(config), TEXT


def hugging_face_vit():
    config = ViTConfig(image_size=32, patch_size=8, num_labels=CLASSES, **SIZES)
    return HuggingFaceViT(config), pictures


def made(network):
    torch.manual_seed(0)
    return network()


@pytest.mark.parametrize("network", [resnet, vit, bert, hugging_face_vit])
def test_blocks_compute_what_the_network_does(network):
    net, x = made(network)
    blocks, out = [block.eval() for block in alkit.blocks(net.eval())], x
    for block in blocks:
        out = block(out)
    expected = net(**x).logits if isinstance(x, dict) else net(x)
    assert torch.equal(out, getattr(expected, "logits", expected))
    own = {id(p) for p in net.parameters()}
    assert {id(p) for block in blocks for p in block.parameters()} == own
    assert len(blocks) >= 4


PAGE = Path(__file__).parents[3] / "docs" / "networks.md"
HUGGING_FACE = ["DistilBert", "DebertaV2", "Albert", "GPT2", "Llama", "ConvNext"]
TRIED = [*(("Hugging Face", each) for each in HUGGING_FACE), ("timm", "mobilenetv2_050")]


@pytest.mark.parametrize(("library", "name"), TRIED)
def test_the_page_of_networks_says_what_happens(library, name):
    (row,) = (own for own in PAGE.read_text().splitlines() if f"{library} | {name} |" in own)
    blocks, off, local = runpy.run_path(str(PAGE.with_suffix(".py")))["tried"](library, name)
    _, _, _, its_blocks, its_off, its_local, _ = (each.strip() for each in row.split("|"))
    assert (blocks, local) == (its_blocks, its_local)
    assert off == its_off or max(float(off), float(its_off)) < 1e-9

"""Networks of other libraries as they come: `python docs/networks.py` writes networks.md."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.ops import StochasticDepth

import alkit

PAGE = Path(__file__).with_suffix(".md")
CLASSES, SAMPLES, STEPS, SIDE = 3, 4, 2, 64
sgd = partial(torch.optim.SGD, lr=0.05)
Made = Callable[[str], tuple[nn.Module, Any]]

HIDDEN = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES = HIDDEN | {"intermediate_size": 32}
PLACES = {"max_position_embeddings": 32}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
NARROW = {"n_embd": 16, "n_layer": 3, "n_head": 2}
TEXTS: dict[str, dict[str, Any]] = {
    "Bert": SIZES | PLACES,
    "DistilBert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32},
    "Roberta": SIZES | PLACES,
    "Electra": SIZES | PLACES,
    "DebertaV2": SIZES | PLACES,
    "Albert": SIZES | PLACES,
    "GPT2": NARROW | ENDS,
    "GPTNeoX": SIZES | PLACES | ENDS,
    "Llama": SIZES | PLACES | ENDS,
    "Qwen2": SIZES | PLACES | ENDS | {"num_key_value_heads": 2},
    "ModernBert": SIZES | PLACES | ENDS | {"cls_token_id": 1, "sep_token_id": 2},
}
PICTURES: dict[str, dict[str, Any]] = {
    "ViT": SIZES | {"image_size": 32, "patch_size": 8},
    "Dinov2": HIDDEN | {"image_size": 32, "patch_size": 8},
    "ConvNext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
}


TIMM = """
    resnet18 resnet26d seresnext26t_32x4d regnetx_002 densenet121 vgg11_bn mobilenetv2_050
    mobilenetv3_small_050 efficientnet_b0 ghostnet_050 mnasnet_small convnext_atto
    convnextv2_atto nfnet_l0 vit_tiny_patch16_224 deit_tiny_patch16_224 mixer_s32_224
    cait_xxs24_224 xcit_nano_12_p16_224 poolformer_s12
""".split()
TORCHVISION = """
    alexnet vgg11 vgg11_bn resnet18 resnet50 resnext50_32x4d wide_resnet50_2 densenet121
    mobilenet_v2 mobilenet_v3_small efficientnet_b0 mnasnet0_5 shufflenet_v2_x0_5 squeezenet1_1
    regnet_x_400mf convnext_tiny vit_b_32 swin_t
""".split()


def pictures(side: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, 3, side, side, generator=generator, dtype=torch.float64)


def texts() -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 40, (SAMPLES, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1::2, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def of_hugging_face(name: str) -> tuple[nn.Module, Any]:
    task = "Image" if name in PICTURES else "Sequence"
    sizes = PICTURES[name] if name in PICTURES else TEXTS[name] | {"vocab_size": 40}
    config = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **sizes)
    net = getattr(transformers, f"{name}For{task}Classification")(config)
    return net, pictures(32) if name in PICTURES else texts()


def of_timm(name: str) -> tuple[nn.Module, Any]:
    side = 224 if name.endswith("224") else SIDE
    return timm.create_model(name, num_classes=CLASSES), pictures(side)


def of_torchvision(name: str) -> tuple[nn.Module, Any]:
    net = torchvision.models.get_model(name, num_classes=CLASSES)
    return net, pictures(getattr(net, "image_size", SIDE))  # a ViT has one size


LIBRARIES: dict[str, tuple[Made, list[str]]] = {
    "Hugging Face": (of_hugging_face, [*TEXTS, *PICTURES]),
    "timm": (of_timm, TIMM),
    "torchvision": (of_torchvision, TORCHVISION),
}


def without_chance(net: nn.Module) -> nn.Module:
    """Drop nothing: no dropout, no path left out."""
    for part in net.modules():
        if isinstance(part, nn.Dropout | StochasticDepth):
            part.p = 0.0
        for name in {"drop_prob", "drop_rate"} & {*vars(part)}:
            setattr(part, name, 0.0)
    return net


def tried(library: str, name: str) -> tuple[str, str, str]:
    """Return a network's blocks, how far 1f1b ends from a plain loop, and whether AL's kin train.

    The distance is the largest of a weight, in double precision.
    """
    torch.manual_seed(0)
    net, x = LIBRARIES[library][0](name)
    net = without_chance(net).double()
    y = torch.arange(SAMPLES) % CLASSES
    truth, other = copy.deepcopy(net).train(), copy.deepcopy(net)
    optimizer = sgd(truth.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        output = truth(**x) if isinstance(x, dict) else truth(x)
        cross_entropy(getattr(output, "logits", output), y).backward()
        optimizer.step()
    options: dict[str, Any] = {"workers": 2, "progress": False}
    try:
        blocks = str(len(alkit.blocks(copy.deepcopy(net))))
        given = {"micro": 1, "loss": cross_entropy, "optimizer": sgd, "lr": 0.05}
        alkit.fit(net, [(x, y)] * STEPS, method="1f1b", **given, **options)
    except (ValueError, TypeError) as error:
        return "", " ".join(str(error).split()), ""
    pairs = zip(net.parameters(), truth.parameters(), strict=True)
    off = max(float((one - own).detach().abs().max()) for one, own in pairs)
    try:
        alkit.fit(other, [(x, y)] * STEPS, method="local_pipeline", lr=1e-4, **options)
    except (ValueError, TypeError) as error:
        return blocks, f"{off:.0e}", " ".join(str(error).split())
    return blocks, f"{off:.0e}", "✓"


HEAD = """# Networks as they come

Untrained, Hugging Face's small, nothing dropped, two steps on four samples. Blocks: into how many
the network is cut. 1f1b: the largest distance of a weight from a plain loop, in double
precision. local_pipeline: ✓ if it trains. A sentence: refused, before the first step.

| library | network | blocks | 1f1b | local_pipeline |
| --- | --- | ---: | --- | --- |
"""


def main() -> None:
    """Write the page, a row at a time: rows that are there already stay."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    heads = [f"| {library} | {n} |" for library, (_, names) in LIBRARIES.items() for n in names]
    rows = {head: row for head in heads for row in text.splitlines() if row.startswith(head)}
    for head in heads:
        if head not in rows:
            _, library, name, _ = (each.strip() for each in head.split("|"))
            rows[head] = f"{head} {' | '.join(tried(library, name))} |"
            text = HEAD + "".join(f"{rows[each]}\n" for each in heads if each in rows)
            PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

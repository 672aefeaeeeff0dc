"""What every method takes: a cell each, tried or refused, and the tables of them.

python -m tests.doors       write all of it into docs/takes.md, and the short one into README
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from transformers import BertConfig, BertForSequenceClassification

import alkit
from alkit.engine.record import Record
from tests import fitted, machines

METHODS = ("bp", "al_pipeline", "pipedream", "1f1b", "split", "elastic", "dtp")
C, WIDTH, N = 3, 8, 26
ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- doors: python -m tests.doors -->", "<!-- /doors -->"

Model = Any
Feature = Callable[[str], None]


def dense(outputs: int = C) -> list[nn.Module]:
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]
    return [*hidden, nn.Linear(WIDTH, outputs)]


def rows(count: int = N, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def labelled(count: int = N, seed: int = 0) -> tuple[Any, torch.Tensor]:
    x = rows(count, seed)
    return x, x[:, :C].argmax(1)


def fit(method: str, model: Model, train: Any, *parts: Any, **options: Any) -> Record:
    """Train by the one line that all methods share."""
    own = {"micro": 2} if method == "1f1b" else {}
    asked = {"batch_size": 8, "lr": 0.01, "progress": False} | own | options
    return alkit.fit(model, train, *parts, method=method, **asked)


def learns(method: str, model: Model, train: Any, *parts: Any, **options: Any) -> Record:
    """Train, and see that every kind of weight was reached and scores come out."""
    record = fit(method, model, train, *parts, **options)
    assert record.losses is not None
    assert torch.isfinite(record.losses).all()
    return record


# ---- models


def a_list_of_blocks(method: str) -> None:
    assert learns(method, dense(), labelled()).predict(rows(5)).shape == (5, C)


def sequential(method: str) -> None:
    assert learns(method, nn.Sequential(*dense()), labelled()).predict(rows(5)).shape == (5, C)


def resnet_18(method: str) -> None:
    torch.manual_seed(0)
    pictures = torch.randn(16, 3, 32, 32), torch.arange(16) % C
    learns(method, torchvision.models.resnet18(num_classes=C), pictures, batch_size=16)


def bert(method: str) -> None:
    torch.manual_seed(0)
    learns(method, _bert(), (torch.randint(1, 40, (8, 7)), torch.arange(8) % C), batch_size=4)


def vit(method: str) -> None:
    torch.manual_seed(0)
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}
    net = torchvision.models.VisionTransformer(**sizes, mlp_dim=8, num_classes=C)
    learns(method, net, (torch.randn(8, 3, 32, 32), torch.arange(8) % C), batch_size=4)


def _bert() -> nn.Module:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "vocab_size": 40, "max_position_embeddings": 8}
    return BertForSequenceClassification(BertConfig(num_labels=C, **sizes))


# ---- losses


def own_loss(method: str) -> None:
    def smoothed(scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return cross_entropy(scores, y, label_smoothing=0.1)

    smoothed.reduction = "mean"  # what methods with micro-batches ask of a function of one's own
    data = labelled()
    assert learns(method, dense(), data, data, loss=smoothed).history.val_acc.notna().all()


def regression(method: str) -> None:
    data = rows(), rows()[:, :1] - rows()[:, 1:2]
    found = learns(method, dense(1), data, data, data, epochs=2, loss=mse_loss)
    found.model.eval()
    assert abs(mse_loss(found.predict(data[0]), data[1]) - found.metrics["loss"]) < 1e-5
    assert found.test_correct is None


def multi_label(method: str) -> None:
    data = rows(), (rows()[:, :C] > 0).float()
    own = binary_cross_entropy_with_logits
    assert set(learns(method, dense(), data, data, data, loss=own).metrics) == {"loss"}


def own_metrics(method: str) -> None:
    data = labelled()
    own = {"worst": lambda scores, y: scores.gather(1, y[:, None]).min()}
    found = learns(method, dense(), data, data, data, metrics=own)
    assert {"val_acc", "val_worst"} <= set(found.history)
    assert set(found.metrics) == {"accuracy", "worst"}


def parameter_groups(method: str) -> None:
    def made(parameters: Any, lr: float) -> torch.optim.Optimizer:
        parameters = list(parameters)
        flat = [each for each in parameters if each.dim() < 2]
        other = [each for each in parameters if each.dim() > 1]
        groups = [{"params": other}, {"params": flat, "lr": lr / 10}]
        return torch.optim.SGD(groups, lr=lr)

    own = {} if method == "split" else {"scheduler": "cosine"}
    model = learns(method, dense(), labelled(), optimizer=made, **own).model
    for each in (
        filter(None, model.named_optimizers().values()) if own and method != "elastic" else ()
    ):
        lrs = [group["lr"] for group in each.param_groups]
        assert lrs == [0.01, 0.001] or not each.param_groups[0]["params"]


# ---- data


def data_loader(method: str) -> None:
    pairs = list(zip(*labelled(26), strict=True))  # the last batch is smaller
    own = {"batch_size": 8}
    learns(method, dense(), torch.utils.data.DataLoader(pairs, 8, num_workers=1), **own)


def dictionary_batch(method: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, 40, (8, 7))
    mask = torch.ones_like(tokens)
    mask[1::2, 4:] = 0
    data = {"input_ids": tokens, "attention_mask": mask}, torch.arange(8) % C
    learns(method, _bert(), data, batch_size=4)


def unequal_batches(method: str) -> None:
    record = learns(method, dense(), labelled(26), labelled(13, 1))
    assert len(record.history) == 1


# ---- runs


class Stopped(Exception):
    """What interrupts a run."""


def checkpoint(method: str) -> None:
    """Interrupt a run in its second epoch, go on, and once more when it is finished."""
    seen = []

    def stops(scores: Any, y: torch.Tensor) -> float:
        seen.append(y)
        if len(seen) == 2:
            raise Stopped
        return 0.0

    def run(path: Path | None = None, metric: Any = lambda *_: 0.0) -> Record:
        parts = labelled(), labelled(13, 1)
        own = {"checkpoint": path, "metrics": {"own": metric}}
        return fit(method, dense(), *parts, epochs=3, **own)

    with tempfile.TemporaryDirectory() as folder:
        try:
            run(Path(folder) / "run", stops)
        except Stopped:
            pass
        else:
            raise AssertionError("it was not interrupted")
        whole = run()
        for again in (run(Path(folder) / "run"), run(Path(folder) / "run")):
            assert len(again.history) == 3
            assert _same(whole.model, again.model)


def extend(method: str) -> None:
    own = {"schedule": "none"} if method == "dtp" else {}  # its cosine ends with the run
    with tempfile.TemporaryDirectory() as folder:
        whole, path = fit(method, dense(), labelled(), epochs=3, **own), Path(folder) / "run"
        fit(method, dense(), labelled(), epochs=1, checkpoint=path, **own)
        longer = fit(method, dense(), labelled(), epochs=3, checkpoint=path, **own)
    assert _same(whole.model, longer.model)


def save_and_load(method: str) -> None:
    record = fit(method, dense(), labelled())
    with tempfile.TemporaryDirectory() as folder:
        alkit.save(record, Path(folder) / "net")
        loaded = alkit.load(Path(folder) / "net", copy.deepcopy(dense()))
    assert torch.equal(loaded.predict(rows(5)), record.predict(rows(5)))


def export(method: str) -> None:
    model = fit(method, dense(), labelled()).model.eval()
    exported = torch.export.export(model, (rows(5),)).module()
    torch.testing.assert_close(exported(rows(5)), model.predict(rows(5)))


def ranks(method: str) -> None:
    own = {"cuts": [1]} if method in ("al_pipeline", "pipedream", "1f1b") else {}
    one, two = (fit(method, dense(), labelled(), ranks=each, **own) for each in (1, 2))
    if method != "elastic":  # two devices are another layout: replicas, or a pipeline
        assert _same(one.model, two.model)


def torchrun(method: str) -> None:
    """Train on the ranks that torchrun has started, which end in the bits of `ranks=2`."""
    found = _by_torchrun(*(fitted.METHODS if method in fitted.METHODS else [method]))
    expected = fitted.digest(fitted.fit(method, ranks=2))
    assert found[method] == dict.fromkeys("01", expected)


@cache
def _by_torchrun(*methods: str) -> dict[str, dict[str, str]]:
    done = machines.on_one(fitted.__file__, *methods)
    if done.returncode:
        raise ValueError(done.stderr)
    assert "CACHE off" not in done.stdout  # all ranks of a machine map the same features
    return fitted.digests(done.stdout)


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


FEATURES: dict[str, Feature] = {
    "list of blocks": a_list_of_blocks,
    "Sequential": sequential,
    "ResNet-18": resnet_18,
    "BERT": bert,
    "ViT": vit,
    "own loss": own_loss,
    "regression": regression,
    "several labels": multi_label,
    "own metrics": own_metrics,
    "parameter groups": parameter_groups,
    "DataLoader": data_loader,
    "dictionary batch": dictionary_batch,
    "unequal batches": unequal_batches,
    "checkpoint": checkpoint,
    "extend a run": extend,
    "save and load": save_and_load,
    "torch.export": export,
    "ranks": ranks,
    "torchrun": torchrun,
}

# what is refused, and by which sentence
NO_INVERSE = "has no inverse here: take AdaptiveAvgPool2d, Conv2d"
CROSS_ENTROPY = "which split can't take: its tails compare classes by cross-entropy"
ENDS = "of another run: epochs is 1 there and 3 here"

REFUSED = {
    ("dtp", "ResNet-18"): f"BatchNorm2d.*{NO_INVERSE}",
    ("dtp", "BERT"): NO_INVERSE,
    ("dtp", "ViT"): NO_INVERSE,
    ("dtp", "dictionary batch"): NO_INVERSE,
    ("split", "BERT"): "unit 0 gives a tuple: split learning sends one tensor",
    ("split", "dictionary batch"): "split sends one tensor: x is dict of 2",
    ("split", "own loss"): CROSS_ENTROPY,
    ("split", "regression"): CROSS_ENTROPY,
    ("split", "several labels"): CROSS_ENTROPY,
    ("elastic", "extend a run"): ENDS,
    ("bp", "ranks"): "of its family only al_pipeline runs on ranks",
    ("split", "ranks"): "ranks is 2, which split can't take",
    ("bp", "torchrun"): "executor is 'ranks': bp takes threads",
    ("split", "torchrun"): "executor is 'ranks': split takes none: it brings its own processes",
}


SHORT = ("list of blocks", "ResNet-18", "BERT", "own loss", "regression", "DataLoader")
SHORT += ("checkpoint", "ranks")
PAGES = {"docs/takes.md": tuple(FEATURES), "README.md": SHORT}


def table(features: Sequence[str]) -> str:
    """Return the table as a page has it."""
    rule = ["---", *[":---:"] * len(METHODS)]
    body = [
        [feature, *("–" if (method, feature) in REFUSED else "✓" for method in METHODS)]
        for feature in features
    ]
    lines = [["", *METHODS], rule, *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def on_page(page: str) -> str:
    """Return what stands between a page's marks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return text.partition(BEGIN)[2].partition(END)[0].strip()


if __name__ == "__main__":
    for page, features in PAGES.items():
        before, _, rest = (ROOT / page).read_text(encoding="utf-8").partition(BEGIN)
        text = f"{before}{BEGIN}\n\n{table(features)}\n\n{END}{rest.partition(END)[2]}"
        (ROOT / page).write_text(text, encoding="utf-8")

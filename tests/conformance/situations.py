"""Ordinary situations of a PyTorch user by method: what works, and what is refused, in a sentence.

python -m tests.conformance.situations        writes docs/situations.md

A cell works if the run ends, every loss is a number, all parameters that learn have moved, and
the network that was given is what the record has. It is refused if alkit says so before the first
step: in its own words, with all weights as they were.
"""

import re
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import alkit
from tests.conformance.families import FAMILIES, C, loader, net, rows
from tests.conformance.networks import LSTM, Plain, Residual, UNet, bert, resnet18, timm_resnet, vit

__all__ = ["PAGE", "SITUATIONS", "Situation", "cell", "count", "kind"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "situations.md"
X, Y = rows(96)


@dataclass(frozen=True)
class Situation:
    """What a user does.

    Attributes:
        words: for the table.
        made: gives (model, train part, options of `alkit.fit`).
    """

    words: str
    made: Callable[[], tuple[Any, Any, dict[str, Any]]]


class Samples(Dataset[Any]):
    """What a tutorial writes: (picture, class number)."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        if not 0 <= at < 40:
            raise IndexError(at)
        return X[at], int(Y[at])


class Focal(nn.Module):
    """A loss of one's own that says what it is over."""

    reduction = "mean"

    def forward(self, scores: Tensor, y: Tensor) -> Tensor:
        chosen = F.log_softmax(scores, 1).gather(1, y[:, None])[:, 0]
        return -((1 - chosen.exp()) ** 2 * chosen).mean()


def images(count: int, side: int, classes: int = 7) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 3, side, side, generator=generator)
    return x, torch.arange(count) % classes


def tokens() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 20, (40, 6), generator=generator)
    return x, x[:, 0] % C


def embedded() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 8), nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, C)
    )


def logs() -> nn.Module:
    return nn.Sequential(*net(), nn.LogSoftmax(1))


def padded() -> DataLoader[Any]:
    """Texts of several lengths: the collation pads and says the lengths."""

    def collate(batch: list[tuple[Tensor, int]]) -> tuple[Any, Tensor]:
        texts = [each for each, _ in batch]
        lengths = torch.tensor([len(each) for each in texts])
        y = torch.tensor([label for _, label in batch])
        return (nn.utils.rnn.pad_sequence(texts, batch_first=True), lengths), y

    texts = [(torch.arange(1, 3 + at % 5) % 20, at % C) for at in range(40)]
    return DataLoader(texts, 8, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]


def dictionaries() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    found = [
        {
            "input_ids": torch.randint(1, 30, (7,), generator=generator),
            "attention_mask": torch.ones(7, dtype=torch.int64),
            "labels": at % C,
        }
        for at in range(20)
    ]
    return DataLoader(found, 8, shuffle=True)  # type: ignore[arg-type]


def groups(parameters: Any, lr: float) -> torch.optim.Optimizer:
    own = list(parameters)
    flat, wide = [p for p in own if p.dim() < 2], [p for p in own if p.dim() > 1]
    made = [{"params": wide}, {"params": flat, "weight_decay": 0.0}]
    return torch.optim.AdamW([each for each in made if each["params"]], lr=lr)


def cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)


def worst(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(1, y[:, None]).min()


def pixels() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.Tanh()) for i, o in ((1, 4), (4, 4))]
    x = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return nn.Sequential(*hidden, nn.Conv2d(4, 2, 1)), (x, (x[:, 0] > 0).long())


def by_token(scores: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), y.flatten())


by_token.reduction = "mean"  # type: ignore[attr-defined]


def per_token() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    x = torch.randint(0, 20, (40, 5), generator=torch.Generator().manual_seed(0))
    hidden = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Embedding(20, 8), hidden, nn.Linear(8, C)), (x, x % C)


def resumed() -> tuple[Any, Any, dict[str, Any]]:
    return net(), (X, Y), {"checkpoint": Path(tempfile.mkdtemp()) / "run.pt", "epochs": 2}


NUMBERS, LABELS = X[:, :1] * X[:, 1:2], (X[:, :C] > 0).float()
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 20.0]), label_smoothing=0.1)
CLIPPED = alkit.clipped(torch.optim.SGD, 1.0)
SEVERAL = {"batch_size": 4, "epochs": 2, "lr": 0.02}  # some weights begin without a gradient

SITUATIONS: dict[str, Situation] = {
    each.words: each
    for each in [
        Situation("a shuffled loader, the last batch smaller", lambda: (net(), loader(91), {})),
        Situation("drop_last=True", lambda: (net(), loader(91, drop_last=True), {})),
        Situation("num_workers=2", lambda: (net(), loader(91, num_workers=2), {})),
        Situation("a Dataset of one's own", lambda: (net(), Samples(), {})),
        Situation("its loader", lambda: (net(), DataLoader(Samples(), 16, shuffle=True), {})),
        Situation("(x, y), nothing else", lambda: (net(), (X, Y), {})),
        Situation("whole numbers as x", lambda: (embedded(), tokens(), {})),
        Situation(
            "torchvision's resnet18", lambda: (resnet18(), images(12, 32), {"batch_size": 6})
        ),
        Situation("torchvision's ViT", lambda: (vit(), images(16, 16), {"batch_size": 8})),
        Situation("a list of blocks", lambda: (nn.ModuleList(net()), (X, Y), {})),
        Situation("self.l1, self.l2, ...", lambda: (Plain(), (X, Y), {})),
        Situation("a residual network", lambda: (Residual(), images(16, 8, C), {"batch_size": 8})),
        # in batches of 8 two devices would take opposite first steps, which average to nothing
        Situation("a U-Net", lambda: (UNet(), images(16, 8, C), {"batch_size": 4})),
        Situation("an LSTM, (tokens, lengths)", lambda: (LSTM(), padded(), {})),
        Situation("Hugging Face's BERT, dictionaries", lambda: (bert(), dictionaries(), {})),
        Situation("timm's resnet10t", lambda: (timm_resnet(), images(16, 32), SEVERAL)),
        Situation("class weights, label smoothing", lambda: (net(), (X, Y), {"loss": WEIGHTED})),
        Situation("NLL of log-probabilities", lambda: (logs(), (X, Y), {"loss": nn.NLLLoss()})),
        Situation("a loss of one's own", lambda: (net(), (X, Y), {"loss": Focal()})),
        Situation(
            "AdamW with two groups", lambda: (net(), (X, Y), {"optimizer": groups, "lr": 0.01})
        ),
        Situation(
            "OneCycleLR",
            lambda: (
                net(),
                (X, Y),
                {"optimizer": groups, "lr": 0.01, "scheduler": alkit.each_batch(cycle)},
            ),
        ),
        Situation("regression, y (N, 1)", lambda: (net(1), (X, NUMBERS), {"loss": nn.MSELoss()})),
        Situation(
            "regression, y (N,)",
            lambda: (
                nn.Sequential(*net(1), nn.Flatten(0)),
                (X, NUMBERS[:, 0]),
                {"loss": nn.MSELoss()},
            ),
        ),
        Situation(
            "two classes, one output",
            lambda: (net(1), (X, (NUMBERS > 0).float()), {"loss": nn.BCEWithLogitsLoss()}),
        ),
        Situation("several labels", lambda: (net(), (X, LABELS), {"loss": nn.BCEWithLogitsLoss()})),
        Situation("metrics of one's own", lambda: (net(), (X, Y), {"metrics": {"worst": worst}})),
        Situation("a class per pixel", lambda: (*pixels(), {"batch_size": 8})),
        Situation("a class per token", lambda: (*per_token(), {"loss": by_token})),
        Situation(
            "patience", lambda: (net(), (X, Y), {"callbacks": [alkit.patience(2)], "epochs": 3})
        ),
        Situation("a checkpoint", resumed),
        Situation("alkit.clipped", lambda: (net(), (X, Y), {"optimizer": CLIPPED, "lr": 0.01})),
        Situation("numpy", lambda: (net(), (X.numpy(), Y.numpy()), {})),
        Situation("labels from 1, as many scores", lambda: (net(), (X, Y + 1), {})),
        Situation("fewer scores than labels", lambda: (net(2), (X, Y), {})),
    ]
}


def cell(situation: Situation, method: str, **more: Any) -> str:
    """Return "" if it works, or the sentence that refuses it.

    Args:
        more: options of `alkit.fit` besides the situation's own.
    Raises:
        AssertionError: neither: says what went wrong.
    """
    torch.manual_seed(0)
    model, train, options = situation.made()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    options |= {"method": method, "progress": False, **more}
    try:
        record = alkit.fit(model, train, train, train, **options)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        own = isinstance(error, ValueError | TypeError) and f"{Path('alkit')}/" in last
        moved = [
            n for n, p in model.named_parameters() if not torch.equal(p.cpu(), before[n].cpu())
        ]
        if not own or moved:
            raise AssertionError(f"{type(error).__name__} of {last}, moved: {moved}") from error
        return str(error)
    assert np.isfinite(record.history.loss).all(), record.history.loss.tolist()
    ended = {name: p.detach().to(before[name].device) for name, p in model.named_parameters()}
    still = [name for name, p in ended.items() if torch.equal(p, before[name])]
    assert not still, f"parameters that have not moved: {still}"
    assert int(record.history.samples.iloc[0]) > 0
    return ""


REFUSALS = {  # what a refusal says: what the page says of it
    "has no inverse here": "dtp: a module has no inverse; the message names those that have one",
    "pipelearn (sends|compares)|which pipelearn can't take|scheduler= goes by epochs": "pipelearn"
    " sends one tensor, compares classes by cross-entropy, and its rates go by epochs",
    "local rules compare classes": "local rules compare classes: numbers are for the recipes of AL",
    "gives no scores|num_classes is 1": "label codes are of one class, or row of numbers, a sample",
    "has no score": "a label has no score",
}


def kind(refusal: str) -> str:
    """Return the number of a refusal on the page, or that it works."""
    if not refusal:
        return "✓"
    return next(str(at) for at, own in enumerate(REFUSALS, 1) if re.search(own, refusal))


def page(found: dict[tuple[str, str], str]) -> str:
    """Return the page: a column for methods that are alike, a line for rows that always work."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for each in FAMILIES:
        own = tuple(found[name, each.method] for name in SITUATIONS)
        columns.setdefault(own, []).append(each.method)
    named = [", ".join(methods) for methods in columns.values()]
    lines = [f"| situation | {' | '.join(named)} |", "| --- |" + " :---: |" * len(named)]
    always = []
    for name, row in zip(SITUATIONS, zip(*columns, strict=True), strict=True):
        if set(row) == {"✓"}:
            always.append(name)
        else:
            lines.append(f"| {name} | {' | '.join(row)} |")
    notes = [f"{at}. {said}" for at, said in enumerate(REFUSALS.values(), 1)]
    works = f"With every method: {'; '.join(always)}."
    return "\n".join([HEAD, works, "", *lines, "", "What is refused:", "", *notes, ""])


HEAD = """# What works as it comes

Ordinary situations of a PyTorch user by method, run by `tests/conformance`. ✓: the run ends, every
loss is a number, every parameter of the network that was given has moved. A number: refused before
the first step, in the sentence of that number below.
"""


def committed() -> dict[tuple[str, str], str]:
    """Return what the page says, by situation and method."""
    text = PAGE.read_text(encoding="utf-8")
    always = re.search(r"With every method: (.*)\.$", text, re.MULTILINE)
    found = {name: ["✓"] for name in (always[1] if always else "").split("; ")}
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    columns = [names.split(", ") for names in lines[0][1:]]
    return {(name, each.method): "✓" for name in found for each in FAMILIES} | {
        (name, method): mark
        for name, *row in lines[2:]
        for methods, mark in zip(columns, row, strict=True)
        for method in methods
    }


def count() -> str:
    """Return how many cells of the page work, as README says it."""
    cells = committed().values()
    return f"{sum(each == '✓' for each in cells)} of {len(cells)} combinations"


def main() -> None:
    """Write the page, and print the count that README names."""
    asked = [(name, each.method) for name in SITUATIONS for each in FAMILIES]
    found = {(name, method): kind(cell(SITUATIONS[name], method)) for name, method in asked}
    PAGE.write_text(page(found), encoding="utf-8")
    print(count())


if __name__ == "__main__":
    main()

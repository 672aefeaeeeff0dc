"""How long a batch takes on one accelerator, by method, beside the plain loop.

    python -m tests.gpu.times      prints the table of docs/devices.md

Methods take turns, in rounds; a number is the median of the rounds over the median of the plain
loop's in the same run.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import alkit
from alkit.models.transformer import transformer

ROUNDS, BATCHES = 3, 20
Batches = list[tuple[Any, Tensor]]
FOUR, TWO = {"workers": 4}, {"workers": 2}
HOW: dict[str, dict[str, Any]] = {
    "bp": {},
    "al": {},
    "al, compiled": {"compile": "steps"},
    "al_pipeline": FOUR,
    "local": {},
    "local_pipeline": FOUR,
    "1f1b": TWO | {"micro": 4},
    "pipedream": TWO,
}
COMPILED = "dense", "VGG"  # the larger ones take minutes to compile


def dense() -> tuple[nn.Module, Batches]:
    """Eight narrow layers: an operator takes longer to launch than to run."""
    hidden = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(8)]
    return nn.Sequential(*hidden, nn.Linear(256, 10)), drawn((128, 256))


def vgg() -> tuple[nn.Module, Batches]:
    blocks, channels = [], 3
    for width in (64, 128, 256, 512, 512):
        pair = [_conv(channels, width), _conv(width, width)]
        blocks.append(nn.Sequential(*pair, nn.MaxPool2d(2)))
        channels = width
    return nn.Sequential(*blocks, nn.Sequential(nn.Flatten(), nn.Linear(512, 10))), pictures()


def _conv(inputs: int, outputs: int) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def resnet() -> tuple[nn.Module, Batches]:
    from torchvision.models import resnet50

    return resnet50(num_classes=10), drawn((128, 3, 160, 160))


def texts() -> tuple[nn.Module, Batches]:
    blocks = transformer(5000, blocks=6, width=768, heads=12, ffn=3072, dropout=0.0)
    draw = torch.Generator().manual_seed(0)
    tokens = [torch.randint(1, 5000, (64, 128), generator=draw) for _ in range(BATCHES)]
    y = torch.randint(4, (64,), generator=draw)
    return nn.Sequential(*blocks, Mean(768, 4)), [((t, t > 0), y) for t in tokens]


class Mean(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(width, classes)

    def forward(self, x: Any) -> Tensor:
        return self.out((x[0] if isinstance(x, tuple) else x).mean(1))


def pictures() -> Batches:
    return drawn((128, 3, 32, 32))


def drawn(shape: tuple[int, ...]) -> Batches:
    draw = torch.Generator().manual_seed(0)
    y = torch.randint(10, (shape[0],), generator=draw)
    return [(torch.randn(shape, generator=draw), y) for _ in range(BATCHES)]


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Batches]]] = {
    "dense: eight layers, 256 wide, batches of 128": dense,
    "VGG: ten convolutions, 32 x 32, batches of 128": vgg,
    "ResNet-50, 160 x 160, batches of 128": resnet,
    "Transformer: six blocks, 768 wide, 64 texts of 128": texts,
}


def on(device: torch.device, value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return tuple(on(device, each) for each in value)


def plain(model: nn.Module, batches: Batches) -> float:
    """Return the seconds of a batch in the loop that every user knows."""
    steps = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    seconds = 0.0
    for _ in range(2):
        torch.accelerator.synchronize()
        start = time.perf_counter()
        for x, y in batches:
            steps.zero_grad()
            cross_entropy(model(x), y).backward()
            steps.step()
        torch.accelerator.synchronize()
        seconds = time.perf_counter() - start
    return seconds / len(batches)


def timed(how: str, model: nn.Module, batches: Batches) -> float:
    """Return the seconds of a batch in the second epoch of `alkit.fit`."""
    record = alkit.fit(
        model, batches, method=how.split(",")[0], epochs=2, progress=False, lr=1e-3, **HOW[how]
    )
    return float(record.history.train_s.iloc[-1]) / len(batches)


def table() -> None:
    """Time all, and print a row as soon as it is there."""
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is None:
        raise SystemExit("no accelerator here: nothing to time")
    name = torch.cuda.get_device_name() if device.type == "cuda" else str(device)
    print(f"| network | plain loop | {' | '.join(HOW)} |")
    print("| --- |" + " ---: |" * (1 + len(HOW)))
    for words, make in NETWORKS.items():
        hows = [each for each in HOW if "compile" not in HOW[each] or words.startswith(COMPILED)]
        found: dict[str, list[float]] = {each: [] for each in ("plain", *hows)}
        for _ in range(ROUNDS):
            for how, seconds in found.items():
                torch.manual_seed(0)
                model, batches = make()
                own = model.to(device), on(device, batches)
                seconds.append(plain(*own) if how == "plain" else timed(how, *own))
        base = statistics.median(found["plain"])
        cells = [f"{base * 1e3:.2f} ms", *(_ratio(found.get(each), base) for each in HOW)]
        print(f"| {words} | {' | '.join(cells)} |", flush=True)
    print(f"\n{name}, torch {torch.__version__}, float32, {ROUNDS} rounds of {BATCHES} batches.")


def _ratio(seconds: list[float] | None, base: float) -> str:
    if seconds is None:
        return "–"
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{middle / base:.2f} ({low / base:.2f} to {high / base:.2f})"


if __name__ == "__main__":
    table()

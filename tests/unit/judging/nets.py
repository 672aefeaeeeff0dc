"""Random networks in stages, a plain step over micro-batches, and faults that are planted in it."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from alkit.engine.modes import evaluating

WORDS = WIDTH = 12


class Net(nn.Module):
    """An embedding, layers with BatchNorm and skips or without, and a head, perhaps tied."""

    def __init__(self, rng):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers, self.skips = nn.ModuleList(), []
        for _ in range(rng.randint(0, 4)):
            norm = [nn.BatchNorm1d(WIDTH)] if rng.random() < 0.5 else []
            self.layers.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), *norm, nn.Tanh()))
            self.skips.append(rng.random() < 0.5)
        if rng.random() < 0.5:
            self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids).mean(1)
        for layer, skip in zip(self.layers, self.skips, strict=True):
            x = layer(x) + x * skip
        return self.head(x)


def drawn(seed):
    """Return a network, batches whose last micro-batch is smaller, and their number."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net, micro = Net(rng), rng.randint(2, 16)
    rows = 4 * micro - 1
    made = [torch.randint(WORDS, (rows, 5)) for _ in range(rng.randint(1, 2))]
    batches = [(ids, ids[:, 0].masked_fill(torch.rand(rows) < 0.2, -100)) for ids in made]
    stages = ["words", *(f"layers.{k}" for k in range(len(net.layers))), "head"]
    return SimpleNamespace(
        net=net,
        batches=batches,
        micro=micro,
        stages=stages,
        parts=[net.words, *net.layers, net.head],
    )


def take(case, *, share=None, flipped=False, after=lambda at: None, during=nullcontext):
    """Leave the gradients of a step, or of one that has a fault."""
    case.net.zero_grad()
    at = 0
    for ids, y in case.batches:
        cut = [*zip(ids.tensor_split(case.micro), y.tensor_split(case.micro), strict=True)]
        counted = int((y != -100).sum())
        for x, own in cut:
            own = own.flip(0) if flipped else own
            right = int((own != -100).sum()) / counted / len(case.batches)
            with during():
                scores = case.net(x)
            loss = cross_entropy(scores, own, reduction="sum") / (own != -100).sum().clamp(1)
            (loss * (right if share is None else share(at, right))).backward()
            after(at)
            at += 1


def scaled(part, factor):
    for p in part.parameters():
        p.grad *= factor


def kept(net):
    return [p.grad.clone() for p in net.parameters()]


def narrow(part):
    """Let a stage compute in bfloat16, as under somebody's autocast."""
    forward = part.forward

    def cast(x):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(x).float()

    part.forward = cast
    return lambda: delattr(part, "forward")


def moving_average(case):
    """torchtitan 1733: each batch divides all that has accumulated."""
    ids, last = len(case.batches), case.micro - 1
    take(
        case,
        share=lambda at, right: right * ids,
        after=lambda at: at % case.micro == last and scaled(case.net, 0.5),
    )


def last_alone(case):
    """NeMo-Automodel 3530."""
    take(case, after=lambda at: at < len(case.batches) * case.micro - 1 and case.net.zero_grad())


def each_stage(case):
    """DeepSpeed 8152."""
    take(case)
    for k, part in enumerate(case.parts):
        scaled(part, 0.5 ** (len(case.parts) - 1 - k))


def left_out(case):
    """torchtitan 963: no stage has these layers."""
    take(case)
    for p in case.net.layers[0].parameters():
        p.grad = None


def clipped(case):
    """Each micro-batch is clipped before the sum."""
    total = [torch.zeros_like(p) for p in case.net.parameters()]

    def clip(at):
        nn.utils.clip_grad_norm_(case.net.parameters(), 1e-2 * (1 + at % 2))
        total[:] = [a + b for a, b in zip(total, kept(case.net), strict=True)]
        case.net.zero_grad()

    take(case, after=clip)
    for p, own in zip(case.net.parameters(), total, strict=True):
        p.grad = own


def tied_twice(case):
    take(case)
    case.net.words.weight.grad *= 2


def in_evaluation(case):
    take(case, during=lambda: evaluating(case.net.layers[0]))


def in_bfloat16(case):
    undo = narrow(case.net.layers[0])
    take(case)
    undo()


def layered(case):
    return len(case.net.layers) > 0


def normed(case):
    return layered(case) and len(case.net.layers[0]) == 3


def uneven(case):
    cut = [own for _, y in case.batches for own in y.tensor_split(case.micro)]
    return len({int((own != -100).sum()) for own in cut}) > 1


def tied(case):
    return case.net.head.weight is case.net.words.weight


def summed(case):
    take(case, share=lambda at, right: right * case.micro)


def means(case):
    take(case, share=lambda at, right: 1 / case.micro)


def flipped(case):
    take(case, flipped=True)


# fault: (how it is planted, its kind, its stage (-1: the last), where it can be planted)
FAULTS = {
    "DeepSpeed 7773": (summed, "scaled", None, None),
    "torchtitan 1733": (moving_average, "weighted", None, lambda c: len(c.batches) > 1),
    "DeepSpeed 8152": (each_stage, "scaled per stage", None, lambda c: layered(c) and not tied(c)),
    "NeMo-Automodel 3530": (last_alone, "some micro-batches", None, None),
    "DeepSpeed 5729": (flipped, "other", -1, lambda c: not tied(c)),
    "torchtitan 963": (left_out, "no gradient", 1, layered),
    "means of labels that count": (means, "weighted", None, uneven),
    "clipped before the sum": (clipped, "weighted", None, None),
    "a shared weight twice": (tied_twice, "scaled", 0, tied),
    "evaluation in a stage": (in_evaluation, "other", 1, normed),
    "bfloat16 in a stage": (in_bfloat16, "other", 1, layered),
}

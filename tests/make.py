"""Small networks, made-up data, and a part that writes down what is asked of it."""

import torch
from torch import nn

from alkit import BPModel
from alkit.data.datasets import DataSet, Part
from tests.helpers import CLASSES, WIDTH, dense_model

RATE = 3e-2


def tanh_blocks(hidden=2, width=6, out=3):
    """Return blocks of a network that ends in scores, the same ones wherever this is called."""
    torch.manual_seed(0)
    inner = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(hidden)]
    return [*inner, nn.Linear(width, out)]


def labelled(count, width=6, classes=3, seed=0):
    """Return rows, and of each the place of the largest of its first numbers."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :classes].argmax(1)


def al_model(seed=0):
    """Return two AL layers with dropout and batch norm, the same ones for the same seed."""
    model = dense_model(2, seed)
    model.set_lr(["enc", "ae"], RATE)
    return model


def bp_model(seed=0):
    """Return a BP model with dropout and batch norm, the same one for the same seed."""
    torch.manual_seed(seed)
    first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU())
    return BPModel([first, nn.Dropout(0.3), nn.Linear(WIDTH, CLASSES)], lr=RATE)


MODELS = {"al": al_model, "al_pipeline": al_model, "bp": bp_model}


def toy(samples=60, seed=0):
    """Return made-up numbers with noisy labels: accuracies go up and down between epochs."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for count in (samples, 20, 20):
        x = torch.randn(count, WIDTH, generator=generator)
        noisy = x[:, :CLASSES] + torch.randn(count, CLASSES, generator=generator)
        parts.append(Part(x, noisy.argmax(1), CLASSES))
    return DataSet("toy", *parts, CLASSES, tuple("abc"))


def interrupted():
    raise KeyboardInterrupt


class Spy:
    """A part that writes down how its batches are asked for; at (epoch, batch) it may fail."""

    def __init__(self, part, fail_at=None, wait=lambda: None, fail=interrupted):
        self.part, self.fail_at, self.wait, self.fail = part, fail_at, wait, fail
        self.asked = []

    def __len__(self):
        return len(self.part)

    def __getattr__(self, name):
        return getattr(self.part, name)

    def batches(self, batch_size, **options):
        self.asked.append(dict(options))
        options.pop("augment", None)
        for at, batch in enumerate(self.part.batches(batch_size, **options)):
            if (options.get("epoch"), at) == self.fail_at:
                self.fail()
            self.wait()
            yield batch


def spied(data, train=None, test=None):
    """Return the data set with some of its parts replaced."""
    return DataSet("toy", train or data.train, data.validation, test or data.test, CLASSES, ())

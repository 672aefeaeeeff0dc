"""Training on wrong labels: a share of them drawn at random, or all.

How well a method fits labels that mean nothing, and what it still learns beside them, tells what it
memorises. Validation and test keep their labels.
"""

from dataclasses import replace

import torch

from alkit.data.parts import DataSet
from alkit.data.seeds import generator_for


def with_label_noise(data: DataSet, share: float, *, seed: int = 0) -> DataSet:
    """Return the set with a share of its training labels drawn anew, uniformly over the classes.

    A drawn label may be the right one, as in the random-label test of Zhang et al. 2017; with
    `share=1.0` no label says anything.

    Raises:
        ValueError: a share outside 0 to 1.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"the share of random labels is {share}: give a number from 0 to 1")
    if share == 0:
        return data
    y = data.train.y
    generator = generator_for("label noise", seed)
    chosen = torch.randperm(len(y), generator=generator)[: round(share * len(y))]
    drawn = torch.randint(data.num_classes, (len(chosen),), generator=generator)
    noisy = y.index_copy(0, chosen, drawn)
    wrong = int((noisy != y).sum())
    note = f"{share:.0%} of the training labels drawn at random, {wrong:,} of {len(y):,} wrong"
    note = f"{data.note}; {note}" if data.note else note
    return replace(data, train=replace(data.train, y=noisy), note=note)

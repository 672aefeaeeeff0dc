"""The label ladder over stacks of equal blocks: what depth costs, and what blocks learn.

image ──► [conv, norm, relu] ──► [conv, norm, relu] ──► ... ──► depth blocks of equal width
                the first ones halve the picture until it is 8 x 8
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from alkit.al.backprop import BPModel
from alkit.al.model import ALModel
from alkit.data.parts import DataSet, Part
from alkit.engine.plan import Plan
from alkit.lab import results
from studies.al import exits
from studies.ladder import diagnostics
from studies.ladder import runs as ladder_study
from studies.ladder.models import NearestCode
from studies.ladder.runs import Outcome

BATCH = 256  # training samples whose gradients are compared
GRID = 8  # pixels a side, from where on no block halves the picture


def name_of(depth: int) -> str:
    """Return what records call a network of so many blocks."""
    return f"convnet of {depth:02d}"


def blocks(depth: int, width: int, *, channels: int, size: int) -> list[nn.Module]:
    """Return equal blocks, the first of which halve a picture of so many pixels a side.

    Raises:
        ValueError: too few blocks to bring the picture down to 8 x 8.
    """
    halvings = max(0, (size // GRID).bit_length() - 1)
    if depth < halvings:
        raise ValueError(f"{depth} blocks can't bring {size} pixels to {GRID}: give {halvings}")
    made: list[nn.Module] = []
    for at in range(depth):
        stride = 2 if at < halvings else 1
        conv = nn.Conv2d(width if at else channels, width, 3, stride, 1, bias=False)
        made.append(nn.Sequential(conv, nn.BatchNorm2d(width), nn.ReLU()))
    return made


def run(variant: str, data: DataSet, plan: Plan, *, depth: int, width: int, lr: float) -> Outcome:
    """Train a variant over so many blocks; the tuning seed leaves the test part closed."""
    torch.manual_seed(plan.seed)
    channels, size = data.train.x.shape[1:3]
    made = blocks(depth, width, channels=channels, size=size)
    return ladder_study.trained(variant, made, data, plan, lr=lr)


def probed(made: Sequence[nn.Module], data: DataSet) -> list[float]:
    """Return the test accuracy of a probe on every block's features, in percent."""
    parts = (data.train, data.validation, data.test)
    seen = [diagnostics.features(made, part) for part in parts]
    labels = [part.y for part in parts]
    return [
        diagnostics.probe(list(zip(level, labels, strict=True)))
        for level in zip(*seen, strict=True)
    ]


def diagnosed(
    model: ALModel | BPModel, data: DataSet, reference: Sequence[Tensor] = ()
) -> dict[str, list[float]]:
    """Return what the blocks of a trained model show, by metric a number a block.

    probe           test accuracy of a logistic regression on the block's features, percent
    class_distance  distance within classes over that between them
    cka_next        likeness to the block above
    cka_bp          likeness to the block of the same depth in the reference
    alignment       cosine of the local gradient with backprop's, of local variants
    code_rank       directions that learned codes use, their mean taken off
    code_cosine     the largest cosine of two of them, likewise
    semantics       correlation of their distances with those between classes in the reference
    decoded         test accuracy of decoding h down to the labels, minus that of the nearest code

    Args:
        reference: test features of every block of a model trained by backprop.
    """
    made = diagnostics.bodies(model)
    tested = diagnostics.features(made, data.test)
    y = data.test.y
    found = {
        "probe": probed(made, data),
        "class_distance": [diagnostics.class_distance_ratio(each, y) for each in tested],
        "cka_next": [diagnostics.cka(*pair) for pair in pairwise(tested)],
        "cka_bp": [
            diagnostics.cka(*pair) for pair in zip(tested, reference, strict=bool(reference))
        ],
    }
    if isinstance(model, ALModel):
        batch = next(iter(data.train.batches(BATCH, seed=0)))
        found["alignment"] = diagnostics.alignment(model, *batch)
    if isinstance(model, NearestCode):
        found |= _of_codes(model.tables(), reference, y)
        found["decoded"] = _decoded(model, data.test)
    return {metric: values for metric, values in found.items() if values}


def record(
    made: results.Run, found: Mapping[str, Any], *, variant: str, data: str, depth: int, seed: int
) -> None:
    """Write what was diagnosed of a variant into a record."""
    labels = {"method": variant, "model": name_of(depth), "data": data, "seed": seed}
    for metric, values in found.items():
        made.record(metric, [round(value, 5) for value in values], **labels)


def over_blocks(recorded: pd.DataFrame, metric: str, *, data: str, depth: int) -> pd.DataFrame:
    """Return a row per variant and block: the mean of a metric over seeds, least, most and n."""
    own = recorded[(recorded.metric == metric) & (recorded.data == data)]
    rows = [
        {"variant": row.method, "block": at, "value": value}
        for row in own[own.model == name_of(depth)].itertuples()
        for at, value in enumerate(row.value, 1)
    ]
    made = pd.DataFrame(rows, columns=["variant", "block", "value"]).astype({"value": float})
    found = made.groupby(["variant", "block"], sort=False).value
    return found.agg(mean="mean", least="min", most="max", n="count").reset_index()


def looked_into(recorded: pd.DataFrame) -> dict[str, int]:
    """Return by data set the most blocks of the networks that were looked into."""
    own = recorded[recorded.metric == "probe"]
    return own.groupby("data").model.max().str.split().str[-1].astype(int).to_dict()


def _decoded(model: NearestCode, part: Part) -> list[float]:
    """Return by how many points every exit's accuracy is higher through its decoders."""
    read_outs = exits.scores(model, part), ladder_study.exit_scores(model, part)
    through, nearest = ((each.argmax(2) == part.y).float().mean(1) for each in read_outs)
    return (100 * (through - nearest)).tolist()


def _of_codes(
    tables: Sequence[Tensor], reference: Sequence[Tensor], y: Tensor
) -> dict[str, list[float]]:
    centred = [table - table.mean(0) for table in tables]
    found = {
        "code_rank": [diagnostics.effective_rank(each) for each in centred],
        "code_cosine": [diagnostics.largest_cosine(each) for each in centred],
    }
    if reference:
        wanted = diagnostics.between_classes(reference[-1], y)
        distances = [torch.nn.functional.pdist(table) for table in tables]
        found["semantics"] = [diagnostics.same_order(each, wanted) for each in distances]
    return found

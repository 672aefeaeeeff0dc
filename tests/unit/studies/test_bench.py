"""Interleaving, and ratios round by round."""

import pytest
import torch

from alkit.al.train import Trained
from alkit.schedule.timeline import Timeline
from studies.common.timing import Stack, compare, interleaved


def _fake(order, name, seconds):
    def run():
        order.append(name)
        return Trained(torch.zeros(1, 1, 2), Timeline((), ()), 10, next(seconds))

    return run


def test_rounds_are_interleaved_and_ratios_are_taken_within_a_round():
    order = []
    runs = interleaved(
        {
            "slow": _fake(order, "slow", iter([9.0, 4.0, 40.0, 4.0])),
            "fast": _fake(order, "fast", iter([2.0, 20.0, 1.0])),
        },
        3,
        progress=False,
    )
    assert order == ["slow"] + ["slow", "fast"] * 3
    table = compare(runs, over="slow").set_index("name")
    assert table.loc["fast", ["speedup", "lowest", "highest"]].tolist() == [2.0, 2.0, 4.0]
    assert table.loc["slow", "speedup"] == 1.0
    assert table.loc["fast", "samples_s"] == 5.0


SMALL = {
    "transformer": {"layers": 2, "width": 12, "heads": 2, "ffn": 8},
    "lstm": {"layers": 2, "width": 12},
    "vgg": {"width": 8},
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_stack_is_made_and_fed_the_same_every_time(kind):
    stack = Stack(kind=kind, texts=4, tokens=5, batches=3, **SMALL[kind])
    one, other = (stack.train(mode).losses for mode in ("al", "al_pipeline"))
    assert torch.equal(one, other)
    assert stack.train("bp").samples == 12
    predicted = stack.predict(cuts=[1])
    assert predicted.samples == 12
    assert predicted.seconds == predicted.timeline.span_s > 0
    with pytest.raises(ValueError, match="give transformer, lstm, vgg"):
        Stack(kind="mlp")
    with pytest.raises(ValueError, match="vgg has 4 blocks, not 5"):
        Stack(kind="vgg", layers=5)

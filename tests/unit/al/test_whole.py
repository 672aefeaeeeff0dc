"""compile="steps": a layer's forward and backward as one call, in the bits of all modes."""

import sys
import threading
from functools import partial

import pytest
import torch
from torch import nn

import alkit
from alkit.engine.compiled import Step, without_lock
from tests.make import labelled, tanh_blocks

X, Y = labelled(104, 8)


class Normed(nn.Module):
    """A block with running statistics, which a compiled step has to move."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


class Dropping(Normed):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.25, self.training)


class Looking(nn.Linear):
    """A module that looks at numbers before it goes on."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x):
        return super().forward(x if float(x.sum()) > 0 else -x)


def blocks(block, count=2):
    torch.manual_seed(0)
    return [*(block() for _ in range(count)), nn.Linear(8, 3)]


def fit(method, made, data=(X[:96], Y[:96]), **options):
    own = {"epochs": 2, "batch_size": 32, "lr": 0.01, "progress": False, "compile": "steps"}
    return alkit.fit(made, data, (X, Y), method=method, **own | options)


def flat(record):
    return torch.cat([each.double().flatten() for each in record.model.state_dict().values()])


def test_all_modes_have_the_same_bits_with_statistics(tmp_path):
    """Also of a run that goes on; a smaller last batch is compiled by itself."""

    def trained(method="local", **options):
        record = fit(method, blocks(Normed), (X, Y), batch_size=40, **options)
        assert record.details.eager == ("", "", "")
        return flat(record)

    expected = trained()
    assert torch.equal(trained("local_pipeline", workers=2), expected)
    trained(epochs=1, checkpoint=tmp_path / "run")
    assert torch.equal(trained(checkpoint=tmp_path / "run"), expected)


def hooked(parameters, lr):
    optimizer = torch.optim.SGD(parameters, lr=lr)
    optimizer.register_step_pre_hook(lambda *_: None)
    return optimizer


EAGER = {
    "a scheduler": {"scheduler": partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)},
    "RMSprop": {"optimizer": partial(torch.optim.RMSprop, weight_decay=0.1)},
    "AMSGrad": {"optimizer": partial(torch.optim.Adam, amsgrad=True)},
    "momentum": {"optimizer": partial(torch.optim.SGD, momentum=0.9, dampening=0.5)},
    "clipped": {"optimizer": alkit.clipped(torch.optim.AdamW, 0.1)},
    "hooked": {"optimizer": hooked},
    "backprop": {"method": "bp"},
    "backprop, clipped": {"method": "bp", "clip": 0.1},
}


@pytest.mark.parametrize("options", EAGER.values(), ids=EAGER)
def test_the_numbers_are_those_of_eager(options):
    """Any optimiser steps as it is."""
    own = {"method": "local"} | options
    compiled, eager = (fit(made=tanh_blocks(2, 8), compile=c, **own) for c in ("steps", False))
    assert set(compiled.details.eager) == {""}
    torch.testing.assert_close(flat(compiled), flat(eager), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.losses, eager.losses, rtol=1e-4, atol=1e-5)


CANNOT = [(Looking, "torch.compile can't take it"), (Dropping, "draws random numbers")]


@pytest.mark.parametrize(("made", "why"), CANNOT)
def test_what_can_t_be_compiled_runs_as_it_is_and_says_why(made, why):
    record, eager = (fit("local", blocks(made, 1), compile=c) for c in ("steps", False))
    assert why in record.details.eager[0]
    torch.testing.assert_close(flat(record), flat(eager), rtol=1e-4, atol=1e-5)


class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.held = nn.Parameter(torch.arange(1.0, 4.0)), {"factor": 1.0}

    def forward(self, x):
        seen = x.sin() * self.held["factor"] * self.weight
        return (seen.sum(),), seen


def test_what_a_block_holds_may_change():
    """A factor that somebody anneals is what it is, not what it was when it was compiled."""
    part, x = Row(), torch.ones(3)
    step = Step(Row.forward, [part])
    once = step(x)[1]
    part.held["factor"] = 3.0
    torch.testing.assert_close(step(x)[1], 3 * once)
    assert step.stands([part])
    assert not step.stands([Row()])
    part.double()
    assert not step.stands([part])


def test_threads_that_enter_alike_functions_run_their_own():
    """More of them than torch keeps versions of one code object, and none runs another's code."""
    before, wrong = sys.getswitchinterval(), []

    def made(number):
        def total(tensors):
            return torch.stack(tensors).sum() * number

        return without_lock(total)

    def many(function, number):
        given = [torch.ones(3)] * number
        wrong.extend(n for n in range(800) if float(function(given)) != 3 * number**2)

    own = [(made(number), number) for number in range(1, 10)]
    for function, number in own:
        function([torch.ones(3)] * number)
    crew = [threading.Thread(target=many, args=each) for each in own]
    sys.setswitchinterval(1e-6)
    try:
        for thread in crew:
            thread.start()
    finally:
        for thread in crew:
            thread.join()
        sys.setswitchinterval(before)
    assert not wrong

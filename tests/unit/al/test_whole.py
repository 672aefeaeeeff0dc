"""compile="steps": a layer's whole step as one call, in the bits of all modes."""

import copy
import random
import threading
from functools import partial

import pytest
import torch
from torch import nn

import alkit
from alkit.al.stages import Epoch
from alkit.al.whole import WholeStage
from alkit.engine import description, native
from alkit.engine.compiled import compiling
from alkit.engine.optimizer_steps import slots_of
from alkit.engine.run import run_single
from alkit.schedule.task import al_pipeline

X = torch.randn(104, 8, generator=torch.Generator().manual_seed(0))
DATA = X, X[:, :3].argmax(1)


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


def blocks(block=Normed):
    torch.manual_seed(0)
    return [*(block() for _ in range(3)), nn.Linear(8, 3)]


def fit(method="local", made=Normed, **options):
    own = {"epochs": 2, "batch_size": 32, "lr": 0.01, "progress": False, "compile": "steps"}
    return alkit.fit(blocks(made), DATA, DATA, method=method, **own | options)


def flat(record):
    return torch.cat([each.double().flatten() for each in record.model.state_dict().values()])


def plain():
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh())


def test_all_modes_have_the_same_bits_with_statistics(tmp_path):
    """Also of a run that goes on; alike layers share a step, a smaller last batch has its own."""
    native._STRUCTURES.clear()
    record = fit()
    assert record.details.eager == ("", "", "", "")
    assert len(native._STRUCTURES) == 2  # the layers', and the head's
    for workers in (2, 3):
        assert torch.equal(flat(fit("local_pipeline", workers=workers)), flat(record))
    fit(epochs=1, checkpoint=tmp_path / "run")
    assert torch.equal(flat(fit(checkpoint=tmp_path / "run")), flat(record))


@pytest.mark.parametrize("orders", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_random_interleavings_have_the_same_bits(orders):
    def trained(choose):
        model = alkit.to_local(blocks(), num_classes=3, sample=X)
        epoch = Epoch(model)
        stages = [WholeStage(stage) for stage in epoch.stages]
        batches = [(X[a : a + 26], DATA[1][a : a + 26]) for a in range(0, 104, 26)]
        order = al_pipeline(len(stages))
        run_single(order, stages, epoch.counted(batches), choose=choose)
        return torch.cat([each.double().flatten() for each in model.state_dict().values()])

    first = trained(None)
    for seed in range(orders):
        assert torch.equal(trained(random.Random(seed).randrange), first)


@pytest.mark.parametrize(
    "options", [{"scheduler": "cosine"}, {"clip": 0.1}, {"accumulate": 2}], ids=str
)
def test_the_numbers_are_those_of_eager(options):
    compiled, eager = fit(made=plain, **options), fit(made=plain, compile=False, **options)
    torch.testing.assert_close(flat(compiled), flat(eager), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled.losses, eager.losses, rtol=1e-4, atol=1e-5)


def test_backprop_is_one_call_too():
    compiled, eager = fit("bp", plain), fit("bp", plain, compile=False)
    assert compiled.details.eager == ("",)
    torch.testing.assert_close(flat(compiled), flat(eager), rtol=1e-4, atol=1e-5)


def test_a_block_that_no_gradient_reaches_is_named():
    class Cut(nn.Linear):
        def forward(self, x):
            return super().forward(x).detach()

    made = [nn.Linear(8, 8), Cut(8, 8), nn.Linear(8, 3)]
    options = {"method": "bp", "compile": "steps", "lr": 0.01, "progress": False}
    with pytest.raises(ValueError, match=r"block 0 \(Linear\) can learn and gets no gradient"):
        alkit.fit(made, DATA, **options)


OPTIMISERS = {
    "adam": partial(torch.optim.Adam, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9)),
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, eps=1e-3),
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "nesterov": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_that_are_written_out_are_those_of_torch(name):
    torch.manual_seed(0)
    own, twin = (nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer, plain = OPTIMISERS[name]([own]), OPTIMISERS[name]([twin])
    [(_, slot)] = slots_of(optimizer)
    rate = torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)
    for _ in range(4):
        twin.grad = torch.randn(5)
        new = slot.known.step(own.detach(), twin.grad, slot.states(own), rate, slot.options)
        own.data.copy_(new)
        plain.step()
    torch.testing.assert_close(own, twin)
    for key, value in plain.state[twin].items():
        if value is not None:  # SGD without momentum writes down that it has none
            torch.testing.assert_close(optimizer.state[own][key], value)


@pytest.mark.parametrize(
    "made",
    [
        partial(torch.optim.RMSprop, lr=0.1),
        partial(torch.optim.Adam, amsgrad=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    ],
)
def test_other_optimisers_step_outside(made):
    assert slots_of(made([nn.Parameter(torch.ones(2))])) is None


class Counting(nn.Linear):
    """A module with a state that no tensor holds."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self._calls = 0

    def forward(self, x):
        self._calls += 1
        return super().forward(x) * self._calls**-0.5


class Looking(nn.Linear):
    """A module that looks at numbers before it goes on."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x):
        return super().forward(x if float(x.sum()) > 0 else -x)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Counting, "changes attributes"),
        (Looking, "torch.compile can't take it"),
        (Dropping, "draws random numbers"),
    ],
)
def test_what_can_t_be_compiled_runs_as_it_is_and_says_why(made, why):
    record = fit(made=made)
    assert why in record.details.eager[0]
    eager = fit(made=made, compile=False)
    torch.testing.assert_close(flat(record), flat(eager), rtol=1e-4, atol=1e-5)


def seen(module):
    return description.described(module), description.shareable(module)


def test_what_is_not_alike_is_not_shared():
    """Attributes, also private ones, objects, hooks and tensors that nobody has registered."""

    def changed(name, value):
        module = nn.Linear(2, 2)
        setattr(module, name, value)
        return module

    plain = seen(nn.Linear(2, 2))
    assert seen(nn.Linear(2, 2)) == plain
    assert plain[1]
    for name, value in (("_scale", 2.0), ("training", False), ("sizes", [1, {"a": 2}])):
        assert seen(changed(name, value)) != plain
        assert description.shareable(changed(name, value))
    for value in (torch.ones(2), partial(torch.add, 1), lambda: plain, object()):
        assert not description.shareable(changed("held", value))
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    assert not description.shareable(hooked)


def test_what_a_block_holds_may_change_between_epochs():
    """A factor that somebody anneals is what it is, not what it was when it was compiled."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.held = nn.Parameter(torch.ones(())), {"factor": 1.0, "of": object()}

        def forward(self, x):
            found = x * self.held["factor"]
            return ((found * self.weight).mean(),), found

    part = Scaled()
    step = native.Native(part, [torch.optim.SGD(part.parameters(), lr=0.1)])
    assert step(torch.ones(2))[1].tolist() == [1, 1]
    part.held["factor"] = 3.0
    assert step(torch.ones(2))[1].tolist() == [3, 3]


def test_more_kinds_of_batches_than_are_compiled_run_as_they_are(monkeypatch):
    monkeypatch.setattr(native, "SHAPES", 1)
    part = nn.Linear(2, 2)
    part.forward = lambda x: ((nn.functional.linear(x, part.weight, part.bias).sum(),), ())
    step = native.Native(part, [torch.optim.SGD(part.parameters(), lr=0.1)])
    step.structure = native._structure_of(step, (torch.ones(3, 2),))
    step.structure.compiled["another kind"] = None
    assert step(torch.ones(3, 2)) is None
    assert step.why == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "al_fm"}, "al_fm runs forwards apart"),
        ({"precision": "float16"}, "scales of float16"),
        ({"compile": "fast"}, "compile is 'fast': give 'steps', or compile blocks"),
        ({"compile": True}, "compile is True: give 'steps', or compile blocks"),
        ({"method": "1f1b"}, "compile is 'steps', which 1f1b can't take: compile blocks"),
    ],
)
def test_what_steps_can_t_do_is_said_before_the_first(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit(**options)


class Row(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 4.0))

    def forward(self, x):
        seen = x.sin() * self.weight
        return (seen.sum(),), seen


def test_code_is_compiled_for_what_it_is_given_and_nothing_else():
    """Nobody but us looks: the same shape in another order of memory, and in another type."""
    part = Row()
    step = native.Native(part, [torch.optim.SGD(part.parameters(), lr=0.0)])
    x = torch.arange(9.0).view(3, 3)
    for given in (x, x.T, x.double(), x):
        torch.testing.assert_close(step(given)[1], (given.sin() * part.weight).detach())
    assert step.why == ""
    assert len(step.structure.compiled) == 3
    assert step(x, object()) is None
    assert step.why == "what it is given holds a object, and no tensor"


def test_a_part_that_is_compiled_does_not_change_what_others_do_meanwhile(monkeypatch):
    """torch's flag of compilations is the process's, and a layer's own code must not read it."""
    flag = "_is_compiling_flag"

    def forward(self, x):
        torch.compiler._is_compiling_flag = True  # as another thread's compilation begins
        return nn.Linear.forward(self, x)

    monkeypatch.setattr(torch.compiler, flag, False)
    layer = nn.Linear(4, 4)
    layer.forward = partial(forward, layer)
    model = alkit.to_local([layer], 3, torch.zeros(2, 4))
    monkeypatch.setattr(torch.compiler, flag, False)
    model[0](torch.zeros(2, 4), torch.tensor([0, 1]))  # sees no change of its input


def test_no_optimiser_steps_while_torch_compiles():
    """torch's Adam steps by other bits beside a compilation."""
    given = {"optimizer": torch.optim.Adam, "lr": 0.1}
    model = alkit.to_local([nn.Linear(4, 4)], 3, torch.zeros(2, 4), **given)
    layer, before = model[0], copy.deepcopy(model.state_dict())
    layer(torch.randn(2, 4), torch.tensor([0, 1]))
    worker = threading.Thread(target=layer.backward_and_update)
    with compiling():
        worker.start()
        worker.join(0.5)
        assert worker.is_alive()
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    worker.join(10)
    assert not worker.is_alive()
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_torch_s_count_of_compiled_frames_fails_no_step(monkeypatch):
    """The count is the process's: another thread's call may have put it back to 0 before the end of
    this one, which then raised what is not so, after its step."""
    from torch._dynamo import eval_frame

    real = eval_frame.set_fullgraph_compiled_frame_count

    def reset(count):
        found = real(count)
        return 0 if count < 0 else found

    monkeypatch.setattr(eval_frame, "set_fullgraph_compiled_frame_count", reset)
    record = fit("bp", plain, epochs=1)
    assert record.details.eager == ("",)

"""Feedback alignment, sign symmetry and direct feedback alignment against plain loops by hand."""

import copy
import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import alkit
from alkit.data.seeds import generator_for
from alkit.delayed import Pipeline, feedback_stages, schedule_for, train_epoch
from alkit.delayed.layers import starts_of, tail_of
from alkit.schedule.task import Task
from alkit.schedule.validate import ancestors_of, validate

METHODS = ("fa", "sign_symmetry", "dfa")
C, LR, SEED = 3, 0.1, 7


def sgd(parameters, lr=LR):
    return torch.optim.SGD(parameters, lr=lr)


def mlp():
    torch.manual_seed(0)
    made = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, C)
    return nn.Sequential(*made).double()


def convnet():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), nn.ReLU(inplace=True)),
        *(nn.Flatten(), nn.Linear(6 * 2 * 2, C)),
    ).double()


def rows(kind, count=21):
    shape = {"mlp": (6,), "convnet": (2, 8, 8)}[kind]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return x, x.flatten(1)[:, :C].argmax(1)


MADE = {"mlp": mlp, "convnet": convnet}
BLOCKS = {"mlp": [0, 2, 4], "convnet": [0, 3, 6]}  # those with weights


def loader(kind, seen=None):
    """Shuffled, 8 + 8 + 5 samples; what it gives is written down."""

    def collate(samples):
        batch = torch.utils.data.default_collate(samples)
        if seen is not None:
            seen.append(batch)
        return batch

    return DataLoader(TensorDataset(*rows(kind)), 8, shuffle=True, collate_fn=collate)


def uniform(values, shape, *key):
    bound = 1 / math.sqrt(values)
    generator = generator_for(SEED, "feedback", *key)
    return torch.empty(shape, dtype=torch.float64).uniform_(-bound, bound, generator=generator)


def b_of(method, at, weight):
    """Return what takes the place of a weight in the backward pass."""
    inputs = weight[0].numel()
    if method == "fa":
        return uniform(inputs, weight.shape, at, "weight")
    return weight.detach().sign() / math.sqrt(3 * inputs)


def with_weight(layer, weight, x):
    """Return W x, without the bias."""
    if isinstance(layer, nn.Linear):
        return x @ weight.T
    own = layer.stride, layer.padding, layer.dilation, layer.groups
    return F.conv2d(x, weight, None, *own)


def gradients(net, kind, method, x, y):
    """Return the gradients of all parameters, layer by layer, from the last to the first."""
    inputs = []
    with torch.no_grad():
        for block in net:
            inputs.append(x)
            x = F.relu(x) if isinstance(block, nn.ReLU) else block(x)
    scores = x.requires_grad_()
    [error] = [score_error] = torch.autograd.grad(F.cross_entropy(scores, y), scores)
    found = {}
    for at in reversed(range(len(net))):
        block, x = net[at], inputs[at].clone().requires_grad_()
        if method == "dfa" and at + 1 in BLOCKS[kind]:  # the output of a layer
            first = max(n for n in BLOCKS[kind] if n <= at)
            b = uniform(error[0].numel(), (C, *error.shape[1:]), first)
            error = torch.einsum("bc,c...->b...", score_error, b)
        if at not in BLOCKS[kind]:
            y = F.relu(x) if isinstance(block, nn.ReLU) else block(x)
            [error] = torch.autograd.grad(y, x, error)
            continue
        own = dict(block.named_parameters())
        for name, grad in zip(own, torch.autograd.grad(block(x), own.values(), error), strict=True):
            found[f"{at}.{name}"] = grad
        b = block.weight if method == "dfa" else b_of(method, at, block.weight)
        [error] = torch.autograd.grad(with_weight(block, b, x), x, error)
    return found


def by_hand(kind, method, batches):
    net = MADE[kind]()
    for x, y in batches:
        found = gradients(net, kind, method, x, y)
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                parameter -= LR * found[name]
    return net


def fitted(kind, method, model=None, data=None, **options):
    net = MADE[kind]() if model is None else model
    own = {"optimizer": sgd, "lr": LR, "seed": SEED, "progress": False} | options
    return alkit.fit(net, loader(kind) if data is None else data, method=method, **own)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("method", METHODS)
def test_weights_are_those_of_the_loop_by_hand(method, kind):
    net, seen = MADE[kind](), []
    fitted(kind, method, net, loader(kind, seen))
    batches = seen[-3:]  # before them two samples are looked at
    assert sorted(len(y) for _, y in batches) == [5, 8, 8]
    expected = by_hand(kind, method, batches)
    for (name, found), own in zip(net.named_parameters(), expected.parameters(), strict=True):
        assert (found - own).abs().max() < 1e-12, name


def weights(kind, method, **options):
    net = MADE[kind]()
    fitted(kind, method, net, rows(kind), batch_size=8, **options)
    return [each.detach() for each in net.parameters()]


def apart(some, others):
    pairs = zip(some, others, strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


EXECUTORS = {
    "threads": {"executor": "threads"},
    "free workers": {"executor": "threads", "workers": 2},
}


@pytest.mark.parametrize("method", METHODS)
def test_bits_are_those_of_one_thread(method):
    own = {"cuts": [3, 6], "micro": 2}
    alone = weights("convnet", method, executor="single", **own)
    for how in EXECUTORS.values():
        assert apart(alone, weights("convnet", method, **own, **how)) == 0


def test_bits_are_those_of_ranks():
    assert apart(weights("mlp", "dfa", ranks=2), weights("mlp", "dfa")) == 0


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("method", METHODS)
def test_neither_cuts_nor_micro_batches_matter(method, kind):
    found = weights(kind, method)
    for cuts, micro in itertools.product(([], BLOCKS[kind][2:], BLOCKS[kind][1:]), (1, 3)):
        assert apart(found, weights(kind, method, cuts=cuts, micro=micro)) < 1e-9
    assert apart(found, weights(kind, method, cuts="auto")) < 1e-9


@pytest.mark.parametrize("method", ["fa", "sign_symmetry"])
def test_another_order_has_the_same_gradients(method):
    own = {"workers": 2, "micro": 2, "cuts": [1, 2, 3]}
    found = weights("mlp", method, schedule="interleaved_1f1b", **own)
    assert apart(found, weights("mlp", method)) < 1e-9


@pytest.mark.parametrize("kind", MADE)
def test_with_the_forward_weights_it_is_backprop(kind, monkeypatch):
    for name in ("_fixed", "signs"):
        where = feedback_stages if name == "signs" else feedback_stages.FeedbackStage
        monkeypatch.setattr(where, name, lambda *given: given[-1])
    exact = weights(kind, "1f1b")
    assert apart(weights(kind, "fa"), exact) < 1e-15
    assert apart(weights(kind, "sign_symmetry"), exact) < 1e-15


def test_direct_errors_by_the_last_weights_are_those_of_two_layers(monkeypatch):
    """Below a linear last layer, backprop's e W is what a B that is W sends."""

    def made():
        return nn.Sequential(*mlp()[:2], nn.Linear(8, C).double())

    torch.manual_seed(0)
    net, twin = made(), made()
    twin.load_state_dict(net.state_dict())
    b = net[2].weight.detach().clone()
    monkeypatch.setattr(feedback_stages, "drawn", lambda *given: b)
    data = rows("mlp", 8)
    for own, method in ((net, "dfa"), (twin, "1f1b")):
        fitted("mlp", method, own, data, batch_size=8)
    assert apart([*net.parameters()], [*twin.parameters()]) < 1e-15


def test_every_method_computes_something_else():
    found = {method: weights("convnet", method) for method in (*METHODS, "1f1b")}
    for one, other in itertools.combinations(found, 2):
        assert apart(found[one], found[other]) > 1e-4


def digits(method, frozen=False):
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(32, 10))
    for layer in hidden if frozen else ():
        layer.requires_grad_(requires_grad=False)
    options = {"optimizer": sgd, "lr": 0.1, "epochs": 4, "progress": False}
    record = alkit.fit(net, "digits", method=method, **options)
    return float(record.metrics["accuracy"])


def test_they_learn():
    accuracy = {method: digits(method) for method in METHODS}
    alone = digits("1f1b", frozen=True)
    assert min(accuracy.values()) > 0.5  # chance is a tenth
    assert accuracy["dfa"] > alone, (accuracy, alone)


@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (3, 1), (3, 4), (5, 2)])
def test_no_backward_waits_for_another(stages, micro):
    schedule = schedule_for("dfa", stages, micro)
    assert max(validate(schedule).staleness) == 0
    for stage, m in itertools.product(range(stages - 1), range(micro)):
        waits = schedule.edges(Task("backward", stage, 5, m))
        assert waits == (
            ("order", Task("forward", stage, 5, m)),
            ("data", Task("forward", stages - 1, 5, m)),
        )
    before = ancestors_of(schedule)
    for one, other in itertools.permutations(range(stages), 2):
        assert not before.precedes(Task("backward", one, 3, 0), Task("backward", other, 3, 0))


def test_the_timeline_of_threads_has_every_backward_after_the_last_forward():
    net = mlp()
    data = rows("mlp", 24)
    record = fitted("mlp", "dfa", net, data, batch_size=8, cuts=[2, 4], executor="threads")
    ends = {(i.kind, i.stage, i.batch): (i.start_s, i.end_s) for i in record.timeline.intervals}
    for stage, batch in itertools.product(range(3), range(3)):
        assert ends["backward", stage, batch][0] >= ends["forward", 2, batch][1]


def test_what_waits_are_removed():
    removes = {method: alkit.METHODS[method].removes for method in METHODS}
    assert removes == {"fa": ("weights",), "sign_symmetry": (), "dfa": ("weights",)}
    assert {alkit.METHODS[method].family for method in METHODS} == {"feedback"}


class Twice(nn.Module):
    """One layer that runs twice, inside a recomputation if it is asked for."""

    def __init__(self, recomputed=False):
        super().__init__()
        self.inner, self.recomputed = nn.Linear(6, 6), recomputed

    def step(self, x):
        return torch.tanh(self.inner(x))

    def forward(self, x):
        if self.recomputed:
            return self.step(checkpoint(self.step, x, use_reentrant=False))
        return self.step(self.step(x))


def tied(recomputed=False):
    torch.manual_seed(0)
    made = nn.Linear(6, 6), Twice(recomputed), nn.Linear(6, C)
    return nn.Sequential(*made).double()


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_layer_that_runs_twice_sends_errors_twice(recomputed):
    net, (x, y) = tied(recomputed), rows("mlp", 8)
    start = [each.detach().clone() for each in net.parameters()]
    fitted("mlp", "fa", net, (x, y), batch_size=8, lr=1.0)
    w0, c0, w1, c1, w2, c2 = start
    b1, b2 = uniform(6, w1.shape, 1, "inner.weight"), uniform(6, w2.shape, 2, "weight")
    h0 = x @ w0.T + c0
    h1 = torch.tanh(h0 @ w1.T + c1)
    h2 = torch.tanh(h1 @ w1.T + c1)
    scores = (h2 @ w2.T + c2).requires_grad_()
    [e] = torch.autograd.grad(F.cross_entropy(scores, y), scores)
    e2 = (e @ b2) * (1 - h2**2)
    e1 = (e2 @ b1) * (1 - h1**2)
    e0 = e1 @ b1
    expected = [e0.T @ x, e0.sum(0), e2.T @ h1 + e1.T @ h0, (e2 + e1).sum(0), e.T @ h2, e.sum(0)]
    moved = [was - now for was, now in zip(start, net.parameters(), strict=True)]
    assert apart(moved, expected) < 1e-12


@pytest.mark.filterwarnings("ignore:Full backward hook")  # a layer of dfa sends nothing down
@pytest.mark.parametrize("method", METHODS)
def test_the_model_keeps_its_hooks_its_mode_and_its_state(method):
    net, seen = convnet(), []
    names, modes = [*net.state_dict()], [each.training for each in net.modules()]
    net[3].register_forward_pre_hook(lambda module, given: seen.append(given[0].clone()))
    net[3].register_forward_hook(lambda module, given, output: seen.append(output.clone()))
    net[6].register_full_backward_hook(lambda module, sent, error: seen.append(error[0]))
    hooks = [{**each.__dict__} for each in net.modules()]
    fitted("convnet", method, net, [rows("convnet", 8)])
    x, y, error = seen[-3:]
    fresh = convnet()
    torch.testing.assert_close(x, fresh[:3](rows("convnet", 8)[0]))
    torch.testing.assert_close(y, fresh[3](x))
    assert error.shape == (8, C)
    assert [*net.state_dict()] == names
    assert [each.training for each in net.modules()] == modes
    for module, before in zip(net.modules(), hooks, strict=True):
        kept = {name: len(own) for name, own in before.items() if "hooks" in name and own}
        assert kept == {n: len(o) for n, o in module.__dict__.items() if "hooks" in n and o}


def test_what_follows_without_weights_belongs_to_a_layer():
    norm, act = nn.BatchNorm1d(6), nn.PReLU()
    body = [nn.Flatten(), nn.Linear(6, 6), norm, act, nn.Dropout(0.1), nn.Linear(6, 6), nn.Tanh()]
    assert starts_of([*body, nn.Linear(6, 3), nn.LogSoftmax(1)]) == [0, 5, 7]
    assert tail_of([*body, nn.Linear(6, 3), nn.LogSoftmax(1)]) == 8
    assert starts_of([nn.Tanh(), nn.Flatten()]) == [0]
    assert starts_of([nn.Sequential(norm, nn.Linear(6, 6)), nn.Linear(6, 3)]) == [0, 1]


@pytest.mark.parametrize("method", METHODS)
def test_bfloat16_is_near(method):
    def net():
        return convnet().float()

    x, y = rows("convnet")
    found = []
    for precision in ("float32", "bfloat16"):
        own = net()
        fitted("convnet", method, own, (x.float(), y), batch_size=8, precision=precision)
        found.append([*own.parameters()])
    assert 0 < apart(*found) < 0.05


def shapes():
    """Layers that add, transpose, pad in circles, and keep the size."""
    torch.manual_seed(0)
    made = [
        nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
        nn.ConvTranspose1d(4, 4, 3, stride=2, output_padding=1),
        nn.GroupNorm(2, 4),
        nn.Conv1d(4, 4, 4, padding="same"),
        nn.Flatten(),
        nn.Linear(4 * 12, C),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch pads an even kernel by a copy
        return nn.Sequential(*made).double()


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_any_geometry_is_the_operator_s(monkeypatch):
    x = torch.randn(8, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(feedback_stages.FeedbackStage, "_fixed", lambda *given: given[-1])
    found = []
    for method in ("fa", "1f1b"):
        net = shapes()
        fitted("mlp", method, net, (x, torch.arange(8) % C), batch_size=8)
        found.append([*net.parameters()])
    assert apart(*found) < 1e-14


class Normed(nn.Linear):
    """Computes the weight that it multiplies by."""

    def forward(self, x):
        return F.linear(x, self.weight / self.weight.norm(), self.bias)


class Written(nn.Linear):
    """Multiplies without an operator that could be seen."""

    def forward(self, x):
        return x @ self.weight.T + self.bias


def compiled():
    net = mlp()
    net[2].compile()
    return net


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(x), x


class Sum(Pair):
    def forward(self, given):
        return self.layer(given[0] + given[1])


def narrow(*blocks):
    return nn.Sequential(*blocks, nn.Linear(6, C)).double()


def attention():
    return narrow(nn.TransformerEncoderLayer(6, 1, 6, batch_first=True, dropout=0.0))


class Lstm(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


WORDS = "knows linear and convolutional layers"
PARAMETRISED = nn.utils.parametrizations.weight_norm
REFUSED = [
    ("fa", attention, {}, f"block 0, self_attn, is MultiheadAttention with .* {WORDS}"),
    ("sign_symmetry", attention, {}, f"is MultiheadAttention .* sign_symmetry {WORDS}"),
    ("fa", lambda: narrow(Lstm(6, 6)), {}, f"block 0 is Lstm with bias_hh_l0, .* {WORDS}"),
    ("fa", lambda: narrow(PARAMETRISED(nn.Linear(6, 6))), {}, "is ParametrizationList"),
    ("fa", lambda: narrow(nn.Linear(6, 6), Normed(6, 6)), {}, "linear has a weight that is compu"),
    ("fa", lambda: narrow(Written(6, 6)), {"cuts": []}, "block 0 is Written and multiplies"),
    ("fa", compiled, {}, "block 2 is compiled, and fa has to see what it calls"),
    ("fa", lambda: narrow()[:1], {}, "there is none that has one below it: take 1f1b"),
    ("fa", mlp, {"compile": True}, "compile is True, which fa can't take"),
    ("dfa", lambda: narrow()[:1], {}, "the layers below the last, and there are none"),
    ("dfa", lambda: narrow(Pair(), Sum()), {}, "block 0 gives .* for 2 samples: dfa sends"),
    ("dfa", mlp, {"cuts": [1]}, r"cuts has 1, and block 1 \(Tanh\) belongs .* blocks \[2, 4\]"),
    ("dfa", mlp, {"cuts": "auto", "memory": 1e9}, "memory is 1000000000.0, which dfa can't take"),
    (
        "dfa",
        mlp,
        {"schedule": "looped_bfs", "cuts": [2]},
        "schedule= is for gpipe, 1f1b, .* fa, sign",
    ),
]


@pytest.mark.parametrize(("method", "made", "options", "words"), REFUSED)
def test_what_can_t_be_followed_is_refused_before_the_first_step(method, made, options, words):
    net = made()
    before = [each.detach().clone() for each in net.parameters()]
    with pytest.raises(ValueError, match=words):
        fitted("mlp", method, net, rows("mlp"), **options)
    assert apart(before, [*net.parameters()]) == 0


def test_blocks_of_any_kind_learn_by_direct_errors():
    x = torch.randn(16, 5, 6, dtype=torch.float64)
    net = nn.Sequential(
        *attention()[:1], Lstm(6, 6, batch_first=True), nn.Flatten(), nn.Linear(30, C)
    )
    before = [each.detach().clone() for each in net.double().parameters()]
    fitted("mlp", "dfa", net, (x, torch.arange(16) % C))
    pairs = zip(before, net.parameters(), strict=True)
    assert not any(torch.equal(was, now) for was, now in pairs)


class Skipping(nn.Module):
    """Two values are live between its layers."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 20)
        self.c, self.d = nn.Linear(20, C), nn.Linear(8, C)

    def forward(self, x):
        low = torch.tanh(self.a(x))
        return self.c(torch.relu(self.b(low))) + self.d(low)


@pytest.mark.parametrize("cuts", [[], [1], [1, 2], [2, 3]])
def test_a_value_that_travels_along_had_its_error_where_it_was_made(cuts, monkeypatch):
    b = {}

    def remembered(like, shape, fan, seed, what, number):
        b[number] = torch.randn(*shape, generator=generator_for(number, "b"), dtype=like.dtype)
        return b[number]

    monkeypatch.setattr(feedback_stages, "drawn", remembered)
    torch.manual_seed(0)
    net, (x, y) = Skipping().double(), rows("mlp", 8)
    assert [block.live for block in alkit.blocks(net)] == [1, 2, 2, 1]
    twin = copy.deepcopy(net)
    fitted("mlp", "dfa", net, (x, y), batch_size=8, cuts=cuts)
    low = torch.tanh(twin.a(x))
    high = torch.relu(twin.b(low.detach()))
    third = twin.c(high.detach())
    scores = third.detach() + twin.d(low.detach())
    [e] = torch.autograd.grad(F.cross_entropy(scores, y), scores, retain_graph=True)
    torch.autograd.backward([low, high, third, scores], [e @ b[0], e @ b[1], e @ b[2], e])
    sgd(twin.parameters()).step()
    assert apart([*net.parameters()], [*twin.parameters()]) < 1e-14


@pytest.mark.parametrize("method", METHODS)
def test_errors_are_those_of_the_last_layer_whatever_follows_it(method):
    """The gradient by log-probabilities does not know what was predicted."""
    for cuts in ([], [2, 4]):
        own = nn.Sequential(*mlp(), nn.Hardtanh(-9, 9, inplace=True), nn.LogSoftmax(1))
        fitted("mlp", method, own, rows("mlp"), batch_size=8, loss=nn.NLLLoss(), cuts=cuts)
        assert apart([*own.parameters()], weights("mlp", method)) < 1e-14


def test_a_frozen_last_layer_still_sends_errors():
    net = mlp()
    net[4].requires_grad_(requires_grad=False)
    before = [each.detach().clone() for each in net.parameters()]
    fitted("mlp", "dfa", net, rows("mlp"), batch_size=8)
    moved = [not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
    assert moved == [True] * 4 + [False] * 2


def test_samples_of_another_size_have_no_error():
    pool = nn.Sequential(nn.Conv1d(2, 6, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    net = [nn.Conv1d(2, 2, 1), pool, nn.Linear(6, C)]
    batches = [(torch.randn(4, 2, size), torch.arange(4) % C) for size in (5, 7)]
    with pytest.raises(ValueError, match=r"gives \(2, 7\) a sample, and gave \(2, 5\) before"):
        train_epoch(Pipeline(net, F.cross_entropy, [1], sgd), batches, "dfa")

"""Local rules: each against plain torch, block by block; isolation; what is refused."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit import to_local, train_epoch
from alkit.al.rules import RULES
from studies.ladder import rules
from tests.helpers import differences, full_state

CLASSES = 3
FUNCTIONS = {"predsim": rules.predsim, "dgl": rules.dgl, "scpl": rules.scpl}
EVERY = (*RULES, "fixed_codes", *FUNCTIONS)
PICTURES, ROWS = torch.randn(6, 2, 8, 8), torch.randn(6, 5)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


def _pictures():
    convs = [nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)]
    top = nn.Sequential(nn.Flatten(), nn.Linear(256, CLASSES))
    return [*(nn.Sequential(conv, nn.Tanh()) for conv in convs), top]


def _rows():
    blocks = [nn.Sequential(nn.Linear(5, 5), nn.Tanh()) for _ in range(2)]
    return [*blocks, nn.Linear(5, CLASSES)]


def _made(rule, x=PICTURES, **options):
    torch.manual_seed(0)
    options["rule"] = FUNCTIONS.get(rule, rule)
    return to_local(_pictures() if x.dim() == 4 else _rows(), CLASSES, x[:2], **options)


def _cosines(rows):
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / rows.norm(dim=1, keepdim=True)
    return rows @ rows.T


def _entropy(scores):
    log_p = scores.log_softmax(1)
    return -(0.9 * log_p[range(len(Y)), Y] + 0.1 * log_p.mean(1)).mean()


# ---- a row's head, by hand: (b, s, whether it is the last) -> what the loss sees


def _linear(b, s, last):
    (linear,) = (part for part in b.modules() if isinstance(part, nn.Linear))
    return s @ linear.weight.T + linear.bias


def _cosine(b, s, last):
    m, rows = _linear(b, s, last), b[1].table
    return 10 * (m @ rows.T) / m.norm(dim=1, keepdim=True) / rows.norm(dim=1)


def _predsim(b, s, last):
    return torch.cat([b.classify(s), b.compare(s)], dim=1)


def _dgl(b, s, last):
    parts = list(b.body)
    assert len(parts) == (7 if last else 10)  # linear, norm, ReLU of 2 or 3 hidden, the last
    for linear, norm in zip(parts[:-1:3], parts[1::3], strict=True):
        s = linear(s)
        s = (s - s.mean(0)) / (s.var(0, unbiased=False) + 1e-5).sqrt()
        s = (norm.weight * s + norm.bias).relu()
    return parts[-1](s)


def _scpl(b, s, last):
    return torch.cat([b.classify(s.detach()), s / s.norm(dim=1, keepdim=True)], dim=1)


BY_HAND = {"linear": _linear, "cosine": _cosine, "fixed_codes": _linear}
BY_HAND |= {"predsim": _predsim, "dgl": _dgl, "scpl": _scpl}


# ---- its loss, by hand


def _by_scores(m, table):
    return _entropy(m)


def _by_fixed_codes(m, table):
    return _entropy(10 * m / m.norm(dim=1, keepdim=True) @ table.T)


def _by_predsim(m, table):
    y = F.one_hot(Y, CLASSES).float()
    alike = (_cosines(m[:, CLASSES:]) - _cosines(y)).square().mean()
    return 0.01 * _entropy(m[:, :CLASSES]) + 0.99 * alike


def _by_scpl(m, table):
    z, total = m[:, CLASSES:], 0.0
    for i in range(len(Y)):
        others = [j for j in range(len(Y)) if j != i]
        scores = torch.stack([z[i] @ z[j] / 0.1 for j in others])
        log_p = scores - scores.logsumexp(0)
        alike = [at for at, j in enumerate(others) if Y[j] == Y[i]]
        total = total - sum(log_p[at] for at in alike) / (len(alike) + 1)
    return total / len(Y) + _entropy(m[:, :CLASSES])


LOSSES = dict.fromkeys(("linear", "cosine", "dgl"), _by_scores)
LOSSES |= {"fixed_codes": _by_fixed_codes, "predsim": _by_predsim, "scpl": _by_scpl}


@pytest.mark.parametrize("x", [PICTURES, ROWS], ids=["pictures", "rows"])
@pytest.mark.parametrize("rule", EVERY)
def test_a_step_is_plain_sgd_on_every_block_s_own_loss(rule, x):
    model = _made(rule, x, lr=0.1, optimizer=torch.optim.SGD)
    twins = copy.deepcopy([[layer.enc.f, layer.enc.b] for layer in model])
    table = getattr(model[0].ae.g, "table", None)
    found = train_epoch(model, [(x, Y)] * 2, "local")
    optimizers = [torch.optim.SGD(nn.ModuleList(own).parameters(), lr=0.1) for own in twins]
    expected = []
    for _ in range(2):
        s, losses = x, []
        for (f, b), optimizer in zip(twins, optimizers, strict=True):
            s = f(s)
            m = BY_HAND[rule](b, s, b is twins[-1][1]) if x is ROWS else b(s)
            losses.append(LOSSES[rule](m, table))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
            s = s.detach()
        expected.append(torch.stack(losses).detach())
    torch.testing.assert_close(found.losses[:, :, 0], torch.stack(expected))
    for layer, (f, b) in zip(model, twins, strict=True):
        for own, twin in ((layer.enc.f, f), (layer.enc.b, b)):
            torch.testing.assert_close([*own.parameters()], [*twin.parameters()])


@pytest.mark.parametrize("rule", EVERY)
def test_a_step_of_a_layer_changes_that_layer_alone(rule):
    model = _made(rule)
    s, t = model[0](PICTURES, model.label_input(Y))
    before = copy.deepcopy(dict(model.named_parameters()))
    model[1](s, t)
    model[1].backward_and_update()
    changed = differences(before, dict(model.named_parameters()))
    assert {name.split(".enc.")[0] for name in changed} == {"layers.1"}


def test_rules_and_orders_have_digests_of_their_own():
    digests = {}
    for rule in EVERY:
        states = []
        for mode, workers in (("local", 1), ("local_pipeline", 2)):
            model = _made(rule)
            trained = train_epoch(model, [(PICTURES, Y)] * 3, mode, workers)
            assert len(trained.timeline.resources) == workers
            states.append(copy.deepcopy(full_state(model)))
        assert not differences(*states)
        digests[rule] = model[0].enc.f[0].weight.sum().item()
    assert len(set(digests.values())) == len(EVERY)
    assert alkit.fit(_made("predsim"), (PICTURES, Y), progress=False).model.rule == "predsim"

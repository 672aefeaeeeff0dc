"""What associated learning and local rules can't train is said in a sentence."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit import AE, AL, ENC, ALModel, best, to_al, to_bp, to_local, train_epoch
from alkit.al.codes import Codes
from alkit.al.recipes import FIXED_CODES
from studies.ladder import rules
from tests.helpers import CODE, WIDTH, dense_layer, dense_model, made_batches
from tests.make import bp_model, labelled, tanh_blocks, toy

X, Y = made_batches(1)[0]
DATA = labelled(6)
SHARES = torch.full((4, 3), 1 / 3)
AT_LEAST_SQUARES = "numbers to predict need mean squared errors"


def epoch(mode, batches=((X, Y),), model=None, **options):
    train_epoch(model or dense_model(2), batches, mode, **options)


def fitted(model=None, data=None, **options):
    return alkit.fit(model or dense_model(1), data or toy(), progress=False, **options)


def layer(lr=1e-3):
    plain = dense_layer(0)
    return AL(plain.enc, plain.ae, lr)


def shared_function():
    first, second = dense_layer(1), dense_layer(1)
    second.enc.f = first.enc.f
    ALModel([first, second])


def wide_bridge():
    model = dense_model(2)
    model[0].enc.b = nn.Linear(WIDTH, CODE + 1)
    model(X, Y)


def in_place():
    own = dense_layer(0)
    own.enc.f = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    own(X, Y)


def codes_of_another_number():
    own = AL(ENC(nn.Linear(2, 2), nn.Linear(2, 3)), AE(nn.Linear(4, 3), nn.Linear(3, 4)))
    own(torch.zeros(2, 2), Codes(torch.eye(4), torch.zeros(3, dtype=torch.int64)))


def of_unknown_width():
    own = AL(ENC(nn.Linear(WIDTH, 4), nn.Identity()), AE(lambda y: y, lambda t: t))
    ALModel([own]).label_input(torch.tensor([0, 1]))


def local(**options):
    return to_local(tanh_blocks(), 3, X, **options)


REFUSED = [
    *((partial(layer, lr), "lr is .* it must be a number")
      for lr in ("1e-3", True, torch.tensor(0.1), [0.1, 0.2])),
    *((partial(layer, lr), "lr") for lr in (-1.0, float("nan"), {"enc": 1e-3, "ae": -1.0})),
    (lambda: dense_model(3).predict(X, 0), "exits 1 to 3"),
    (lambda: dense_model(3).predict(X, 4), "exits 1 to 3"),
    (shared_function, "layers 0 and 1 share"),
    (lambda: dense_model(2)(X, Y[:3]), r"the bridge gives \(4, 5\) and the label code is \(3, 5\)"),
    (lambda: dense_model(2)(X[:3], torch.rand(3)), "the bridge gives"),  # 3 is C, too
    (codes_of_another_number, "the bridge gives"),
    (wide_bridge, "b must pool"),
    (in_place, "in place"),
    (lambda: dense_layer(0).update(), "update.. needs a backward"),
    (lambda: dense_layer(0).backward(), "backward.. needs a forward"),
    # epochs
    (lambda: epoch("al_mf"), "unknown mode 'al_mf' for ALModel: give al, al_m"),
    (lambda: epoch("al", model=bp_model()), "unknown mode 'al' for BPModel: give bp"),
    (lambda: epoch("al", []), "the loader is empty"),
    (lambda: epoch("al_pipeline", []), "the loader is empty"),
    (lambda: epoch("al", workers=0), "workers is 0"),
    (lambda: epoch("al", threads=0), "threads is 0"),
    (lambda: epoch("al", cuts=[1]), "cuts and ranks are for al_pipeline and local_pipeline"),
    (lambda: epoch("al", model=local()),
     "'al' for ALModel by rule 'linear': give local, local_pipeline"),
    (lambda: epoch("local"), "give al, al_m"),
    # networks and rules
    (lambda: to_al([], 2, X), "no blocks"),
    (lambda: to_al([torch.relu], 2, X), "block 0 must be a module"),
    (lambda: to_al([nn.Identity()], 2, torch.zeros(1, 2, 3, 4, 5)), "give pool="),
    (lambda: to_al(nn.Module(), 3, X), "blocks is a whole Module, and .*Give a list of its blocks"),
    (lambda: to_al(tanh_blocks(), 1, X),
     "num_classes is 1, and recipe 'detached' compares classes"),
    (lambda: to_al(tanh_blocks(), 1, X, recipe="mse"), "recipe='regression'"),
    (lambda: local(rule="mono"), "rule is 'mono': give linear, cosine"),
    (lambda: replace(FIXED_CODES["texts"], coupled=True), "fixed codes learn nothing"),
    # labels
    (of_unknown_width, "does not show how many classes"),
    (lambda: epoch("al", [(X, torch.randn(4, 3))], to_al(tanh_blocks(), 3, X)), AT_LEAST_SQUARES),
    *((lambda y=y: epoch("bp", [(X, y)], to_bp(tanh_blocks(1)[:1], y[0].numel(), X)),
       AT_LEAST_SQUARES)  # of one score the cross-entropy is 0, whatever the network does
      for y in (torch.randn(4, 1), torch.randn(4), torch.randn(4, 3))),
    (lambda: local(rule="fixed_codes")[0](X, SHARES), "shared.y, soft=True."),
    # fits
    *((lambda recipe=recipe: fitted(tanh_blocks(), DATA, method="al", recipe=recipe),
       "targets are class numbers, and this recipe's head") for recipe in
      ("regression", "multi_label")),
    (lambda: fitted(local(), DATA, method="al_pipeline", ranks=2), "by rule 'linear'"),
    (lambda: fitted(tanh_blocks(), (X, torch.randn(4, 3)), method="local", loss=F.mse_loss),
     "local rules compare classes"),
    (lambda: fitted(tanh_blocks(), (X, SHARES), method="local", rule=rules.scpl),
     "these labels are shares of classes"),
    (lambda: fitted(tanh_blocks(), DATA, method="al", recipe="fixed_codes"),
     "or method='local', rule='fixed_codes'"),
    (lambda: fitted(tanh_blocks(), DATA, method="al_fm", compile="steps"),
     "al_fm runs forwards apart"),
    *((lambda given=given: fitted(tanh_blocks(), DATA, method="local", compile=given),
       f"compile is {given!r}: give 'steps', or compile blocks") for given in ("fast", True)),
    (lambda: fitted(tanh_blocks(), DATA, method="1f1b", compile="steps"),
     "unknown settings compile"),
    (lambda: fitted(method="bp"), "unknown mode 'bp' for ALModel"),
    (lambda: fitted(batch_size=0), "batch_size is 0: it must be at least 1"),
    (lambda: fitted(epochs=0), "epochs is 0"),
    (lambda: fitted(callbacks=[lambda *_: {"loss": 0.0}]),
     "a callback returns 'loss', which the row has"),
    (lambda: fitted(callbacks=[3]), "callbacks holds 3: give functions"),
    (lambda: fitted(callbacks=[best("own_los")]), "no column 'own_los'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises((KeyError, RuntimeError, TypeError, ValueError), match=message):
        call()

"""What associated learning and local rules can't train is said in a sentence."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alkit
from alkit import AE, AL, ENC, ALModel, to_al, to_bp, to_local, train_epoch
from alkit.al.codes import Codes
from alkit.al.recipes import FIXED_CODES
from studies.ladder import rules
from tests.helpers import WIDTH, dense_layer, dense_model, made_batches
from tests.make import labelled, tanh_blocks, toy

X, Y = made_batches(1)[0]
DATA = labelled(6)
SHARES = torch.full((4, 3), 1 / 3)
AT_LEAST_SQUARES = "numbers to predict need mean squared errors"


def epoch(mode, batches=((X, Y),), model=None, **options):
    train_epoch(model or dense_model(2), batches, mode, **options)


def fitted(model=None, data=None, **options):
    return alkit.fit(model or dense_model(1), data or toy(), progress=False, **options)


def shared_function():
    first, second = dense_layer(1), dense_layer(1)
    second.enc.f = first.enc.f
    ALModel([first, second])


def in_place():
    own = dense_layer(0)
    own.enc.f = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))
    own(X, Y)


def codes_of_another_number():
    own = AL(ENC(nn.Linear(2, 2), nn.Linear(2, 3)), AE(nn.Linear(4, 3), nn.Linear(3, 4)))
    own(torch.zeros(2, 2), Codes(torch.eye(4), torch.zeros(3, dtype=torch.int64)))


def local(**options):
    return to_local(tanh_blocks(), 3, X, **options)


REFUSED = [
    (lambda: dense_layer(0).set_lr("enc", float("nan")), "lr"),
    (lambda: dense_model(3).predict(X, 0), "exits 1 to 3"),
    (shared_function, "layers 0 and 1 share"),
    (lambda: dense_model(2)(X[:3], torch.rand(3)), "the bridge gives"),  # 3 is C, too
    (codes_of_another_number, "the bridge gives"),
    (in_place, "in place"),
    (lambda: dense_layer(0).update(), "update.. needs a backward"),
    (lambda: epoch("al", cuts=[1]), "cuts and ranks are for al_pipeline and local_pipeline"),
    (lambda: epoch("al", model=local()), "give local, local_pipeline"),
    # of one score the cross-entropy is 0, whatever the network does
    (lambda: to_al(tanh_blocks(), 1, X), "num_classes is 1, and recipe 'detached' compares"),
    (lambda: to_al(tanh_blocks(), 1, X, recipe="mse"), "recipe='regression'"),
    *((lambda y=y: epoch("bp", [(X, y)], to_bp(tanh_blocks(1)[:1], y[0].numel(), X)),
       AT_LEAST_SQUARES) for y in (torch.randn(4, 1), torch.randn(4), torch.randn(4, 3))),
    (lambda: epoch("al", [(X, torch.randn(4, 3))], to_al(tanh_blocks(), 3, X)), AT_LEAST_SQUARES),
    (lambda: local(rule="fixed_codes")[0](X, SHARES), "shared.y, soft=True."),
    (lambda: replace(FIXED_CODES["texts"], coupled=True), "fixed codes learn nothing"),
    (lambda: fitted(tanh_blocks(), DATA, method="al", recipe="regression"),
     "targets are class numbers, and this recipe's head"),
    (lambda: fitted(tanh_blocks(), (X, torch.randn(4, 3)), method="local", loss=F.mse_loss),
     "local rules compare classes"),
    (lambda: fitted(tanh_blocks(), (X, SHARES), method="local", rule=rules.scpl),
     "these labels are shares of classes"),
    (lambda: fitted(tanh_blocks(), DATA, method="al_fm", compile="steps"),
     "al_fm runs forwards apart"),
    (lambda: fitted(callbacks=[lambda *_: {"loss": 0.0}]), "a callback returns 'loss', which"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_refused(call, message):
    with pytest.raises((KeyError, RuntimeError, TypeError, ValueError), match=message):
        call()

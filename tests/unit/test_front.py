"""The way from `alkit.fit` to a method's trainer is short, and hooks, callbacks and words hold."""

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import alkit
from alkit.engine.trainer import Plan, Trainer

X, Y = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3
WAY = 6  # modules at most


class Reached(Exception):
    pass


def walked(method: str) -> tuple[set[str], set[str]]:
    """Return the modules on the stack where the trainer trains, and those that saw the plan."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    way, saw = set[str](), set[str]()

    def home(frame: FrameType) -> str:
        return frame.f_globals.get("__name__", "")

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        if not home(frame).startswith("alkit"):
            return
        held = frame.f_locals
        saw.update(home(frame) for each in list(held.values()) if isinstance(each, Plan))
        if frame.f_code.co_name != "train" or Trainer not in type(held.get("self")).__mro__:
            return
        at: FrameType | None = frame
        while at is not None:
            way.update([home(at)] if home(at).startswith("alkit") else [])
            at = at.f_back
        raise Reached

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        alkit.fit(net, (X, Y), method=method, progress=False)
    except Reached:
        pass
    finally:
        sys.settrace(before)
    return way, saw


@pytest.mark.parametrize("method", "bp al_pipeline 1f1b pipedream pipelearn elastic dtp".split())
def test_the_way_to_a_trainer_is_short(method):
    way, saw = walked(method)
    assert "alkit.engine.loop" in way
    assert len(way) <= WAY, way
    assert len(saw) <= WAY, saw


@pytest.mark.parametrize("more", [{}, {"compile": "steps"}])
def test_what_the_race_over_many_cores_calls(more):
    """One call to make the layers, then epochs of the same ones."""
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)]
    blocks.append(nn.Sequential(nn.Flatten(), nn.Linear(8, 3)))
    batches = list(zip(X.split(16), Y.split(16), strict=True))
    own = {"workers": 2, "threads": 1, **more}
    rule = {"method": "local_pipeline", "rule": "linear", "progress": False}
    record = alkit.fit(blocks, batches[:2], **rule, **own)
    epoch = alkit.train_epoch(record.model, batches, "local_pipeline", **own)
    assert epoch.losses.shape == (4, 2, 2)
    assert epoch.eager == (("",) * 3 if more else ())

"""Whoever judges gradients names faults by kind and place, and lets what is right pass."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy

import alkit
from tests.unit.judging.nets import FAULTS, drawn, take

SEEDS = range(20)


def judged(case, **options):
    return alkit.judge(
        case.net, cross_entropy, case.batches, micro=case.micro, stages=case.stages, **options
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_right_passes(dtype):
    for seed in SEEDS:
        case = drawn(seed)
        case.net.to(dtype)
        take(case)
        assert judged(case).equal, (seed, judged(case))


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_by_kind_and_place(name):
    plant, kind, stage, possible = FAULTS[name]
    cases = [case for case in map(drawn, SEEDS) if possible is None or possible(case)]
    assert cases
    for case in cases:
        plant(case)
        drawn_from, state = torch.get_rng_state(), [*case.net.state_dict().values()]
        before = [each.clone() for each in state]
        found = judged(case)
        assert torch.equal(drawn_from, torch.get_rng_state())  # a judge leaves no trace
        assert all(map(torch.equal, before, state))
        assert all(part.training for part in case.net.modules())
        where = len(case.stages) - 1 if stage == -1 else stage
        assert (found.kind, found.stage) == (kind, where), (case, str(found))


def test_a_step_is_watched():
    """With an optimizer it is a context: weights may move."""
    case = drawn(1)
    for share, kind in ((None, "equal"), (lambda at, right: 2 * right, "scaled")):
        own = torch.optim.Adam(case.net.parameters())
        for _ in range(2):
            with judged(case, optimizer=own) as verdict:
                take(case, share=share)
                own.step()
            assert verdict.kind == kind
    with judged(case, optimizer=own) as verdict:
        take(case)
    assert str(verdict) == "can't say: the optimizer has taken no step"


def test_the_gradient_of_the_step_before():
    case, old = drawn(3), drawn(3)
    case.batches, old.batches = case.batches[:1], drawn(4).batches[:1]
    old.micro = case.micro = 2
    take(old)
    gradients = {name: p.grad for name, p in old.net.named_parameters()}
    with torch.no_grad():
        for p in case.net.parameters():
            p += 0.1
    case.batches = [*old.batches, *case.batches]
    verdict = judged(case, gradients=gradients, versions=[old.net.state_dict()])
    assert verdict.kind == "stale"
    assert verdict.words.startswith("weights of stages are [1, 1")


def test_what_cannot_be_said(tmp_path):
    """Noise, and micro-batches that are too many for a stage; gradients come from a file."""
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    noisy = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    cross_entropy(noisy(x), y).backward()
    assert "draws noise" in alkit.judge(noisy, cross_entropy, (x, y)).words
    small = nn.Sequential(nn.Linear(3, 2))
    cross_entropy(small(x[:1]), y[:1]).backward()
    save_file({name: p.grad for name, p in small.named_parameters()}, tmp_path / "gradients")
    given = load_file(tmp_path / "gradients")
    assert alkit.judge(small, cross_entropy, (x, y), micro=8, gradients=given).kind == "can't say"


def test_a_parameter_that_no_stage_has_is_named():
    case = drawn(3)
    with pytest.raises(ValueError, match=r"no stage has head\."):
        alkit.judge(case.net, cross_entropy, case.batches, stages=case.stages[:-1])
    with pytest.raises(ValueError, match="nothing to judge: no parameter has"):
        alkit.judge(case.net.requires_grad_(requires_grad=False), cross_entropy, case.batches)

"""Gradients of torch's seven runtimes over gloo, and of alkit's exact and delayed methods."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import alkit

MICRO, LR = 4, 0.3
BATCHES = torch.randn(10, 16, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
LABELS = BATCHES[:, :, :3].argmax(2)
SINGLE, SEVERAL = (
    "GPipe 1F1B",
    "Interleaved1F1B LoopedBFS InterleavedZeroBubble ZBVZeroBubble DualPipeV",
)


def net():
    torch.manual_seed(0)
    hidden = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*hidden, nn.Linear(8, 3)).double()


def by_torch(name):
    """Return a rank's gradients by name, of a step of torch's runtime."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    whole, rank = net(), torch.distributed.get_rank()
    cuts = [(0, 1), (2, 3)] if name in SINGLE else [(0,), (1,), (2,), (3,)]
    turned = name in ("ZBVZeroBubble", "DualPipeV")
    own = range(len(cuts))[rank::2] if not turned else ((0, 3), (1, 2))[rank]
    parts = {at: nn.Sequential(*(whole[k] for k in cuts[at])) for at in own}
    cpu = torch.device("cpu")
    stages = [PipelineStage(part, at, len(cuts), cpu) for at, part in parts.items()]
    given = stages[0] if len(stages) == 1 else stages
    schedule = get_schedule_class(name)(given, MICRO, loss_fn=cross_entropy)
    last = len(cuts) - 1 in own
    x, y = BATCHES[0], LABELS[0]
    schedule.step(*([x] if 0 in own else []), **({"target": y, "losses": []} if last else {}))
    return {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}


def all_of_torch():
    return {name: by_torch(name) for name in f"{SINGLE} {SEVERAL}".split()}


def test_torch_s_seven_runtimes_are_right():
    for name in (found := alkit.launch(all_of_torch, ranks=2))[0]:
        gradients = found[0][name] | found[1][name]
        verdict = alkit.judge(
            net(), cross_entropy, (BATCHES[0], LABELS[0]), micro=MICRO, gradients=gradients
        )
        assert verdict.equal, (name, str(verdict))


def trained(method, count, **options):
    """Return the weights after so many batches, each a step."""
    model, data = net(), [*zip(BATCHES, LABELS, strict=True)][:count]
    if count:
        options |= {"optimizer": lambda own, lr: torch.optim.SGD(own, lr=lr), "lr": LR}
        alkit.fit(model, data, method=method, progress=False, **options)
    return {name: own.clone() for name, own in model.state_dict().items()}


def judged(method, at=0, **options):
    """Judge the step for batch `at`, from how far the weights moved."""
    weights = [trained(method, count, **options) for count in range(max(0, at - 5), at + 2)]
    now, then = weights[-2:]
    (model := net()).load_state_dict(now)
    own = {"micro": options.get("micro", 1), "versions": weights[-3::-1]}
    own["gradients"] = {name: (now[name] - then[name]) / LR for name in now}
    return alkit.judge(model, cross_entropy, (BATCHES[at], LABELS[at]), **own)


EXACT = {name: {} for name in ("bp", "seq")}
EXACT |= {name: {"micro": MICRO} for name in ("gpipe", "1f1b", "zero_bubble")}
EXACT |= {"zbv": {"micro": MICRO, "cuts": [1, 2, 3], "workers": 2}, "elastic": {"freeze": "none"}}
EXACT["pipelearn"] = {"workers": 1, "cuts": [2]}


@pytest.mark.parametrize("method", EXACT)
def test_exact_methods_are_right(method):
    assert (found := judged(method, **EXACT[method])).equal, str(found)


LATE = {"pipedream": "[3, 2, 1, 0]", "ddg": "[3, 2, 1, 0]", "2bw": "[1, 1, 1, 1]"}


@pytest.mark.parametrize("method", LATE)
def test_old_weights_are_counted(method):
    found = judged(method, 8, cuts=[1, 2, 3], **({"micro": MICRO} if method == "2bw" else {}))
    assert (found.kind, LATE[method] in found.words) == ("stale", True), str(found)

"""Explain the gradients that somebody's step has left by those of its micro-batches.

What a micro-batch m adds to the loss has a gradient, b[m]; a stage's gradient g is written as their
sum with factors u, by least squares:

    g = sum of u[m] * b[m]     all u are 1: equal     one other number: scaled
                               some u are 0: some micro-batches     else: weighted

What no factors explain is computed again with other weights, modes, precisions and labels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from alkit.base import tree
from alkit.engine.modes import evaluating

# differences below these shares of a gradient's norm are rounding
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
WORDS = {
    "equal": "backprop's gradients",
    "no gradient": "nothing arrives: is it in a stage, in the graph, and asked before zero_grad?",
    "scaled": "times {}: is the loss divided by the number of micro-batches, and once?",
    "scaled per stage": "times {}: does each stage divide what comes from the next one?",
    "some micro-batches": "they count {} times: are gradients added up, or put over one another?",
    "weighted": "micro-batches count {} times: is a sum divided again, or a part clipped?",
    "other": "labels, inputs, weights or noise were others",
    "can't say": "micro-batches' gradients are too short or too alike: give fewer, larger stages",
}
Weights = Mapping[str, Tensor]
Place = tuple[int, str]  # a stage, and of one parameter its name


@dataclass
class Verdict:
    """The kind of gradients (of WORDS, or "stale"), and the stage at fault, the highest; None: all.

    `factors` are of micro-batches, batch after batch; of stages if it is "scaled per stage".
    """

    kind: str = "can't say"
    words: str = "the optimizer has taken no step"
    stage: int | None = None
    factors: list[float] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether these are backprop's gradients, but for rounding."""
        return self.kind == "equal"

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.stage is None else f', stage {self.stage}'}: {self.words}"


def judge(
    net: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    batches: tuple[Any, Any] | list[tuple[Any, Any]],
    *,
    micro: int | Sequence[int] = 1,
    stages: Sequence[nn.Module | str] = (),
    gradients: Mapping[str, Tensor | None] | None = None,
    versions: Sequence[Weights] = (),
    optimizer: torch.optim.Optimizer | None = None,
) -> Any:
    """Return a `Verdict`: whether gradients are backprop's; if not, the kind of fault, and where.

    Ask when a step has left its gradients and weights have not moved. With `optimizer` it is a
    context: its `Verdict` is filled in when the step inside has called this optimizer. A net in
    float64 is judged to 1e-9 of a gradient's norm, one in float32 to 1e-4.

    Args:
        loss: of (what the network returns, y), as the step has it.
        batches: (x, y), or a list of them, whose gradients were accumulated to their mean; x as a
            tuple or dict holds several arguments.
        micro: number of micro-batches of each, cut in order as `torch.tensor_split` does; or sizes.
        stages: modules, or what their parameters' names begin with; by default the net's parts.
        gradients: by parameter name, from other processes or a file; by default those in `net`.
        versions: the weights of 1, 2, ... updates ago, by name.

    Example:
        >>> import torch, alkit
        >>> net, x, y = torch.nn.Linear(4, 3), torch.randn(8, 4), torch.randn(8, 3)
        >>> loss = torch.nn.MSELoss()
        >>> (2 * loss(net(x), y)).backward()
        >>> alkit.judge(net, loss, (x, y)).kind
        'scaled'
    """
    own = batches if isinstance(batches, list) else [batches]
    case = _Case(net, loss, [[_cut(x, micro), _cut(y, micro)] for x, y in own], stages)
    if optimizer is not None:
        return _watched(case, versions, optimizer)
    return case.verdict(case.left() if gradients is None else gradients, versions)


@contextmanager
def _watched(case: "_Case", versions: Any, optimizer: torch.optim.Optimizer) -> Iterator[Verdict]:
    """Take the gradients that the optimizer is given, and judge them when the step has ended."""
    verdict, given = Verdict(), dict[str, Any]()
    hook = optimizer.register_step_pre_hook(lambda *_: given.update(case.left()))
    try:
        yield verdict
    finally:
        hook.remove()
    vars(verdict).update(vars(case.verdict(given, versions)) if given else {})


def _cut(batch: Any, micro: int | Sequence[int]) -> list[Any]:
    rows = tree.batch_size(batch)
    sizes = [(rows + at) // micro for at in range(micro)][::-1] if isinstance(micro, int) else micro
    if sum(sizes) != rows or min(sizes) < 1:
        raise ValueError(f"micro is {micro}, and a batch has {rows} rows: give sizes that add up")
    return [tree.rows(batch, slice(*ends)) for ends in pairwise([0, *accumulate(sizes)])]


def _parts(net: nn.Module) -> list[nn.Module]:
    """Return the parts of a network that have parameters; lists among them are opened."""
    own = [part for part in net.children() if [*part.parameters()]]
    lists = () if isinstance(net, nn.Sequential | nn.ModuleList) else (nn.Sequential, nn.ModuleList)
    opened = [p for each in own for p in (_parts(each) if isinstance(each, lists) else [each])]
    return opened if len(own) != 1 else _parts(own[0]) or own


@contextmanager
def _narrow(part: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    own = next(part.parameters())
    forward = torch.autocast(own.device.type, dtype)(part.forward)
    back = lambda t: t.to(own.dtype) if t.dtype == dtype else t  # noqa: E731
    vars(part)["forward"] = lambda *x, **more: tree.map_tensors(back, forward(*x, **more))
    try:
        yield
    finally:
        del vars(part)["forward"]


class _Case:
    """A step as it was to be; `stages` and `own` say where parameters are in a long vector."""

    def __init__(self, net: nn.Module, loss: Any, batches: Any, given: Sequence[Any]) -> None:
        self.net, self.loss, self.batches, end = net, loss, batches, 0
        tensors = [*net.named_parameters(), *net.named_buffers()]
        self.state = {name: tensor.detach().clone() for name, tensor in tensors}
        parts = {part: name for name, part in net.named_modules()}
        own = given or [*_parts(net), ""]  # what is in no part is a stage
        names = [each if isinstance(each, str) else parts[each] for each in own]
        left = {id(p): name for name, p in net.named_parameters() if p.requires_grad}
        self.own: dict[Place, slice] = {}
        self.stages: dict[Place, slice] = {}
        for k, name in enumerate(names):
            first = end
            for n, p in net.named_parameters(remove_duplicate=False):
                if f"{n}.".startswith(name and f"{name}.") and id(p) in left:
                    self.own[k, left.pop(id(p))] = slice(end, end + p.numel())
                    end += p.numel()
            if end > first:
                self.stages[k, ""] = slice(first, end)
        if left:
            raise ValueError(f"no stage has {', '.join(left.values())}: does anybody train it?")
        if not self.own:
            raise ValueError("there is nothing to judge: no parameter has requires_grad")
        self.modules = {k: p for k, _ in self.stages for p, n in parts.items() if n == names[k]}
        self.bound = ROUNDING[self.state[next(iter(self.own))[1]].dtype]

    def left(self) -> dict[str, Tensor | None]:
        named = self.net.named_parameters()
        return {name: None if p.grad is None else p.grad.clone() for name, p in named}

    def flat(self, gradients: Mapping[str, Tensor | None]) -> Tensor:
        """Return gradients by name as one vector, zeros where there are none."""
        each = ((gradients.get(n), self.state[n]) for _, n in self.own)
        full = [(torch.zeros_like(own) if g is None else g).flatten() for g, own in each]
        return torch.cat(full).detach().double().cpu()

    def columns(self, weights: Weights | None = None, shift: int = 0, seed: int = 0) -> Tensor:
        """Return a column a micro-batch: the gradient of what it adds to the loss.

        With other `weights` than now, by name, or labels of the micro-batch `shift` later.
        """
        state = {n: (weights or {}).get(n, t).detach().clone() for n, t in self.state.items()}
        wanted, found = [state[n].requires_grad_() for _, n in self.own], []
        for xs, ys in self.batches:
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                outs = [self.called(state, x) for x in xs]
            own = [[t for t in tree.tensors(out) if t.requires_grad] for out in outs]
            ends = [[t.detach().requires_grad_() for t in each] for each in own]
            joined = map(torch.cat, zip(*ends, strict=True))
            take = lambda t, own=joined: next(own) if t.requires_grad else t  # noqa: E731
            whole = tree.map_tensors(take, outs[0])
            loss = self.loss(whole, tree.joined([*ys[shift:], *ys[:shift]])) / len(self.batches)
            for each, end in zip(own, ends, strict=True):
                above = torch.autograd.grad(loss, end, retain_graph=True, materialize_grads=True)
                got = torch.autograd.grad(each, wanted, above, allow_unused=True)
                found.append(self.flat({n: g for (_, n), g in zip(self.own, got, strict=True)}))
        return torch.stack(found, 1)

    def called(self, state: dict[str, Tensor], x: Any) -> Any:
        args = () if isinstance(x, dict) else x if type(x) is tuple else (x,)
        return functional_call(self.net, state, args, x if isinstance(x, dict) else {})

    def verdict(self, given: Mapping[str, Tensor | None], versions: Sequence[Weights]) -> Verdict:
        self.seen = self.flat(given)
        columns, again = (self.columns(seed=seed) for seed in (0, 1))
        if not tree.near(columns, again):
            return Verdict(words="the network draws noise: set dropout to 0, or judge it in eval()")
        found = self.factors(columns, self.stages)
        if odd := [k for (k, _), own in found.items() if own is None]:
            found = self.factors(columns, self.own, alike=True)
        if None in found.values():
            tried = ((self.factors(own, self.stages), said) for *said, own in self.others(versions))
            same = (said for found, said in tried if None not in found.values())
            return Verdict(*next(same, ("other", WORDS["other"], max(odd))))
        return _named(found)

    def factors(self, columns: Tensor, places: Mapping[Place, slice], alike: bool = False) -> Any:
        """Return the factors of micro-batches at each place, None where there are none."""
        most = max(float(columns[at].sum(1).norm()) for at in places.values())
        everywhere, found = self.solved(slice(None), columns), dict[Place, Any]()
        for place, at in places.items():
            seen, own = self.seen[at], columns[at]
            whole, ones = own.sum(1), torch.ones(own.shape[1]).double()
            scale = seen @ whole / (whole @ whole).clamp(1e-300)
            tries = [(ones, 1.0), (scale * ones, 1.0)]
            tries += [] if alike else [everywhere, self.solved(at, columns)]
            found[place] = None
            for u, known in reversed(tries):
                sizes = seen.norm(), (own @ u).norm(), 1e-3 * most * u.abs().max()
                if (seen - own @ u).norm() <= self.bound * max(sizes):
                    found[place] = u * known
        return found

    def solved(self, at: slice, columns: Tensor) -> tuple[Tensor, float]:
        """Return factors by least squares, and 1.0 where rounding lets them be known, or nan."""
        live = columns[at].norm(dim=0) > 0  # of the others no label counts
        factors, own = torch.ones(len(live)).double(), columns[at][:, live]
        inverse = torch.linalg.pinv(own.T @ own, hermitian=True, rtol=1e-12)
        for _ in range(2):  # the second time for the rounding of the first
            factors[live] += inverse @ (own.T @ (self.seen[at] - columns[at] @ factors))
        least = float(torch.linalg.eigvalsh(own.T @ own).clamp(0).sqrt().min()) if live.any() else 1
        rounding = self.bound * self.seen[at].norm()
        return factors, 1.0 if 0.1 * least * factors.abs().max() > rounding else torch.nan

    def others(self, versions: Sequence[Weights]) -> Iterator[tuple[str, str, int | None, Tensor]]:
        """Yield a kind, words, a stage, and the gradients that would have been left."""
        last = max(k for k, _ in self.stages)
        lags = [[n] * (last + 1) for n in range(1, 1 + len(versions))]
        lags += [[n * (last - k) for k in range(last + 1)] for n in (1, 2)]
        for each in (own for own in lags if max(own) <= len(versions)):
            weights = {n: versions[each[k] - 1][n] for k, n in self.own if each[k]}
            yield "stale", f"weights of stages are {each} updates old", None, self.columns(weights)
        for k, part in self.modules.items():
            for mode in ("eval()", torch.bfloat16, torch.float16):
                with evaluating(part) if isinstance(mode, str) else _narrow(part, mode):
                    yield "other", f"it computes in {mode}", k, self.columns()
        for shift in range(1, len(self.batches[0][0])):
            said = f"labels are of the micro-batch {shift} later"
            yield "other", said, last, self.columns(shift=shift)


def _named(found: Mapping[Place, Tensor]) -> Verdict:
    """Return the verdict of factors, by stage, or by stage and parameter."""
    off = {place: own for place, own in found.items() if not (own == 1).all()}
    (stage, name), own = max(off.items(), key=lambda each: each[0]) if off else [*found.items()][0]
    alike = all(torch.allclose(own, other, 1e-2) for other in found.values())
    even = all(torch.allclose(each, each.mean(), 1e-2) and each.any() for each in off.values())
    kind = "weighted" if (own.abs() > 0.01 * own.abs().max()).all() else "some micro-batches"
    if even or not own.any():
        kind = ("scaled" if off else "equal") if own.any() else "no gradient"
    if own.isnan().any():
        kind = "can't say"
    elif even and len(off) > 1 and not alike and not name:
        kind, alike, own = "scaled per stage", True, torch.stack([u[0] for u in found.values()])
    factors = (own.round(decimals=4) + 0).tolist()  # no -0
    shown = factors[:1] if kind == "scaled" else factors
    said = WORDS[kind].format(", ".join(f"{each:g}" for each in shown))
    said += f" It is {name} alone: is a shared weight counted twice?" if name else ""
    return Verdict(kind, said, None if alike else stage, factors)

"""Errors that come back on other ways than through the transposed forward weights.

e is the loss's gradient by what a layer gives, W the layer's weight; what the layer takes is sent

    exact    W^T e                   backprop
    fixed    B^T e                   fa: B has W's shape, is drawn once, and stays
    sign     (s sign(W))^T e         sign_symmetry: W as it is then, s = 1 / sqrt(3 n), which is the
                                     spread (the standard deviation) of torch's first weights
    direct   nothing                 dfa: each layer's output is sent B e, e of the scores

Every weight's own gradient is exact for the error that its layer is sent. What is no linear or
convolutional operator (activations, pools, norms, embeddings) sends errors back exactly, and so
does the inside of a layer of dfa. A B is a function of the seed and of where it stands, never of
cuts or workers, and no part of the model. It is drawn as torch draws weights, uniform within
1 / sqrt(n): n is the inputs of a value, and in dfa the values of the output, as if B were the W^T
of a last layer.

Sources: FA, Lillicrap et al. 2016; uSF, Liao et al. 2016; DFA, Nøkland 2016.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from alkit.data.seeds import generator_for
from alkit.engine.recomputed import entered

OPERATORS = (
    *(F.linear, F.conv1d, F.conv2d, F.conv3d),
    *(F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
)
TENSORS = ("input", "weight", "bias")
Feedback = Callable[[str, Tensor], Tensor]  # the B of a weight, by its name and what it is


def drawn(like: Tensor, shape: Sequence[int], values: int, *key: int | str) -> Tensor:
    """Draw a B by a key, of the type and on the device of `like`; the same on every device."""
    bound, generator = 1 / math.sqrt(values), generator_for(*key)
    made = torch.empty(*shape, dtype=like.dtype)
    return made.uniform_(-bound, bound, generator=generator).to(like.device)


def signs(name: str, weight: Tensor) -> Tensor:
    """Return the B of sign_symmetry."""
    return weight.sign() / math.sqrt(3 * weight[0].numel())


@contextmanager
def sending(feedback: Feedback, names: Mapping[int, str], seen: set[str]) -> Iterator[None]:
    """Let operators send errors back through B, also where a backward runs them again.

    Of the calling thread; modules, and hooks of theirs, are left alone.

    Args:
        names: of the weights, by `id`.
        seen: takes the names of those that an operator has.
    """
    again = partial(sending, feedback, names, seen)
    with _Watched(feedback, names, seen), entered(lambda: again):
        yield


class _Watched(TorchFunctionMode):
    def __init__(self, feedback: Feedback, names: Mapping[int, str], seen: set[str]) -> None:
        super().__init__()
        self.feedback, self.names, self.seen = feedback, names, seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in OPERATORS or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        given = dict(zip(TENSORS, args, strict=False)) | kwargs
        x, weight = given["input"], given["weight"]
        name = self.names.get(id(weight))
        if name is None and weight.requires_grad:
            raise ValueError(
                f"{func.__name__} has a weight that is computed from parameters: fa and"
                " sign_symmetry know weights that are parameters; take dfa or 1f1b"
            )
        if name is None:  # a filter that never learns is no weight
            return func(*args, **kwargs)
        self.seen.add(name)
        if not x.requires_grad:
            return func(*args, **kwargs)
        rest, options = args[3:], {key: kwargs[key] for key in kwargs if key not in TENSORS}

        def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
            return func(x, weight, bias, *rest, **options)

        y = run(x.detach(), weight, given.get("bias"))
        send = None if func is F.linear else run
        return _Sent.apply(y, x, weight, partial(self.feedback, name), send)


class _Sent(Function):
    """Hand y on; its gradient goes to y, and B^T of it to x."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight: Tensor, feedback: Any, run: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.feedback, ctx.run = feedback, run
        return y.detach()  # no view of y: the next operator may write there

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        b = ctx.feedback(weight).to(error.dtype)
        if ctx.run is None:
            return error, error @ b, None, None, None
        x = x.to(error.dtype).detach().requires_grad_()
        with torch.enable_grad():  # the operator knows its geometry, and is linear: any x will do
            y = ctx.run(x, b)
        return error, *torch.autograd.grad(y, x, error), None, None, None

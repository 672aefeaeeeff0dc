"""The associated-learning layer (Kao & Chen 2021; Wu et al. 2022).

    input side    s[i-1] --f--> s[i] --b--> m[i]          associated loss  d(m[i], t[i])
                                              :           t[i] is a target only: no gradient to g,
                                              :           unless the layer is coupled
    label side    t[i-1] --g--> t[i] --h--> r[i]          autoencoder loss d(r[i], t[i-1])

Both s[i] and t[i] are handed on detached, so no gradient crosses a layer: its parameters
depend on the layers below it only. Prediction goes up through f, across one b and down through
all h.

Shapes: B batch, C classes, K width of the label code. s may be a tensor or a nested tuple of
tensors (a mask or LSTM states next to the features); pooling to (B, ...) belongs to b.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alkit.al.codes import Codes, class_codes, takes_codes
from alkit.base import tree
from alkit.base.arguments import check_real
from alkit.data.labels import one_hot
from alkit.engine.modes import evaluating
from alkit.engine.optimizers import adam, backward, made, step

Loss = Callable[[Tensor, Any], Tensor]  # its target is a row a sample, or `Codes`
OptimizerFactory = Callable[..., torch.optim.Optimizer]
GROUPS = ("enc", "ae")


def dtype_of(module: nn.Module, default: torch.dtype) -> torch.dtype:
    """Return the dtype of the first floating-point parameter or buffer of a module, if any."""
    held = (t.dtype for t in chain(module.parameters(), module.buffers()) if t.is_floating_point())
    return next(held, default)


class ENC(nn.Module):
    """The input side of an AL layer: block f, bridge b and the associated loss.

    To override, subclass and keep this contract. `forward(x)` returns `(s, m)`, s for the next
    layer (any tree of tensors, not detached), m a float (B, K) as wide as the label code. `loss(m,
    target)` returns a scalar, of a target as rows (B, K) or as `Codes`. `inference` by letter calls
    `self.f` and `self.b`.

    Args:
        f: the block of the backbone.
        b: the bridge; takes the output of f.
        loss: associated loss of (m, target).
    """

    def __init__(
        self, f: Callable[[Any], Any], b: Callable[[Any], Tensor], loss: Loss = F.mse_loss
    ) -> None:
        super().__init__()
        self.f, self.b, self.loss_fn = f, b, loss

    def forward(self, x: Any) -> tuple[Any, Tensor]:
        """Return s = f(x) and m = b(s)."""
        before = _versions(x)
        s = self.f(x)
        if _versions(x) != before:
            # detached tensors share storage: the layer below would back-propagate from wrong values
            said = "make the first operation of f out of place (nn.ReLU(inplace=False), say)"
            raise RuntimeError(f"f changed its input in place, which the layer below needs: {said}")
        return s, self.b(s)

    def loss(self, m: Tensor, target: Tensor | Codes) -> Tensor:
        """Return the associated loss, a scalar."""
        if isinstance(target, Codes) and not takes_codes(self.loss_fn):
            target = target.gathered()
        return self.loss_fn(m, target)


class AE(nn.Module):
    """The label side of an AL layer: label encoder g, decoder h and the autoencoder loss.

    To override, subclass and keep this contract: `forward(y)` returns `(t, r)`, t a float (B, K)
    for the next layer and as target of the bridge, r of the shape of y; `loss(r, y)` returns a
    scalar. `inference` by letter calls `self.h`.

    Args:
        g: label encoder, (B, C) or (B, K of the layer below) -> (B, K).
        h: its inverse.
        loss: autoencoder loss of (r, y); `F.cross_entropy` suits the first layer, where y is
            one-hot and r are logits.
    """

    def __init__(
        self, g: Callable[[Tensor], Tensor], h: Callable[[Tensor], Tensor], loss: Loss = F.mse_loss
    ) -> None:
        super().__init__()
        self.g, self.h, self.loss_fn = g, h, loss

    def forward(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return t = g(y) and r = h(t)."""
        t = self.g(y)
        return t, self.h(t)

    def loss(self, r: Tensor, y: Tensor) -> Tensor:
        """Return the autoencoder loss, a scalar."""
        return self.loss_fn(r, y)


class AL(nn.Module):
    """One layer of associated learning; it trains on its own two losses.

        s, t = layer(x, y)              # losses kept, outputs detached
        layer.backward()
        layer.update()                  # or both: layer.backward_and_update(), also in a thread

    To override, subclass and keep: `forward(x, y)` returns detached (s, t) and leaves the two
    losses in `self.losses` as scalar tensors (associated, autoencoder) with their graphs.

    Args:
        lr: a real number, or {"enc": ..., "ae": ...}.
        optimizer: called as `optimizer(parameters, lr=...)`, once for {f, b} and once for {g, h};
            default fused Adam. A half without parameters needs none.
        coupled: let the associated loss train g too, which then follows both losses.
            Codes so come to depend on the inputs; detached ones are a function of labels alone.
    """

    is_last = False  # does no layer follow: a rule may give the last one another head

    def __init__(
        self,
        enc: ENC,
        ae: AE,
        lr: float | Mapping[str, float] = 1e-3,
        optimizer: OptimizerFactory = adam,
        *,
        coupled: bool = False,
    ) -> None:
        super().__init__()
        self.enc, self.ae = enc, ae
        self.lr = {g: _rate(lr[g] if isinstance(lr, Mapping) else lr) for g in GROUPS}
        self.optimizer_factory, self.coupled = optimizer, coupled
        self.losses: tuple[Tensor, Tensor] | None = None
        self._ready = ""  # what may come next: backward, update or neither
        self._optimizers: dict[str, torch.optim.Optimizer | None] = {}
        self._made_for: dict[str, set[nn.Parameter]] = {}

    def forward(self, x: Any, y: Tensor | Codes) -> tuple[Any, Tensor | Codes]:
        """Run both sides, keep the losses, and return detached s and t.

        Args:
            x: the input of f; detached here, so nothing flows back to where it came from.
            y: class numbers (B,), one-hot rows or label code, float (B, C), or `Codes`: g and h
                then run once a class, and t is `Codes` too.
        """
        once_a_sample = not isinstance(y, Codes)
        x, y = self.taken(x, y)
        self.losses, (s, target) = both(self.enc, self.ae, x, y, coupled=self.coupled)
        self._ready = "backward"
        if once_a_sample and isinstance(target, Codes):
            target = target.gathered()
        return s, target

    def taken(self, x: Any, y: Tensor | Codes) -> tuple[Any, Tensor | Codes]:
        """Return the inputs of both sides: detached, and labels in the form that they take."""
        if not isinstance(y, Codes):
            y = label_rows(y, self.ae.g)
        x, y = tree.detach(x), tree.detach(y)
        if not isinstance(y, Codes) and takes_codes(self.enc.loss_fn):
            y = class_codes(y)
        return x, y

    def backward(self) -> None:
        """Compute the gradients of both losses; gradients that a step has used are dropped."""
        if self._ready != "backward" or self.losses is None:
            raise RuntimeError("backward() needs a forward of its own: call layer(x, y) first")
        backward(self, self.losses)
        self.learned(*self.losses)

    def learned(self, associated: Tensor, autoencoder: Tensor) -> None:
        """Note that gradients of these losses are there; of the losses the values stay."""
        self.losses = associated.detach(), autoencoder.detach()
        self._ready = "update"

    def update(self) -> None:
        """Step both optimisers."""
        if self._ready != "update":
            raise RuntimeError("update() needs a backward of its own: call layer.backward() first")
        for each in self.optimizers.values():
            step(each)
        torch.clear_autocast_cache()  # a context around the loop holds casts of old weights
        self._ready = ""

    def backward_and_update(self) -> None:
        """Do both, as one call that a thread may run; the caller must look for its exception."""
        self.backward()
        self.update()

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer | None]:
        """The optimisers by group; made when first needed, and anew for replaced parts."""
        for group in GROUPS:
            half = getattr(self, group)
            own = {each for each in half.parameters() if each.requires_grad}
            if self._made_for.get(group) != own:
                named, rate = half.named_parameters(), self.lr[group]
                self._optimizers[group] = made(self.optimizer_factory, named, lr=rate)
                self._made_for[group] = own
        return self._optimizers

    def set_lr(self, groups: str | Iterable[str], lr: float) -> None:
        """Set the learning rate of "enc" = {f, b}, "ae" = {g, h} or both."""
        for group in [groups] if isinstance(groups, str) else groups:
            for param_group in getattr(self.optimizers[group], "param_groups", ()):
                param_group["lr"] = _rate(lr)
            self.lr[group] = _rate(lr)

    def loss(self) -> tuple[float, float]:
        """Return the losses of the last forward as numbers: (associated, autoencoder)."""
        assert self.losses is not None  # call layer(x, y) first
        return self.losses[0].item(), self.losses[1].item()

    @torch.no_grad()
    def inference(self, x: Any, path: str) -> Any:
        """Apply f, b or h in evaluation mode, without gradient; the mode is restored."""
        function = {"f": self.enc.f, "b": self.enc.b, "h": self.ae.h}[path]
        with evaluating(self):
            return function(x)

    def parameter_counts(self) -> dict[str, int]:
        """Return the number of parameters of f, b, g and h."""
        halves = {"f": self.enc, "b": self.enc, "g": self.ae, "h": self.ae}
        return {name: _count(getattr(half, name)) for name, half in halves.items()}


def both(
    enc: ENC, ae: AE, x: Any, y: Tensor | Codes, *, coupled: bool = False
) -> tuple[tuple[Tensor, Tensor], tuple[Any, Tensor | Codes]]:
    """Run both sides; return (associated, autoencoder) with their graphs, and s and t detached."""
    t, r = ae(y.rows if isinstance(y, Codes) else y)
    s, m = enc(x)
    _check_graph(enc.f, s)
    aim = t if coupled else t.detach()
    target: Tensor | Codes = aim
    if isinstance(y, Codes):
        # gathering sends the gradient of each class back with the number of its samples as weight
        target, r, y = Codes(aim, y.index), y.of(r), y.gathered()
    if m.shape != (len(y), *t.shape[1:]):
        raise ValueError(
            f"the bridge gives {tuple(m.shape)} and the label code is"
            f" {(len(y), *t.shape[1:])}: b must pool over positions and end in the width of g"
        )
    losses = enc.loss(m, target), ae.loss(r, y)
    return losses, (tree.detach(s), tree.detach(target))


def _check_graph(f: Callable[[Any], Any], s: Any) -> None:
    """Refuse an f whose weights would get no gradient: the input of a layer needs none itself."""
    if not torch.is_grad_enabled() or any(each.requires_grad for each in tree.tensors(s)):
        return
    if isinstance(f, nn.Module) and any(each.requires_grad for each in f.parameters()):
        said = "torch.utils.checkpoint with use_reentrant=True makes none in a layer, give False"
        raise ValueError(f"f has weights that learn, and its output no gradient for them: {said}")


def _rate(lr: float) -> float:
    check_real("lr", lr, zero=True)
    return float(lr)


def _versions(x: Any) -> list[int]:
    # it can't be asked while this is traced, and a first step is run as it is; `is_compiling` would
    # say whether any thread of the process compiles
    if torch.compiler.is_dynamo_compiling():
        return []
    return [tensor._version for tensor in tree.tensors(x)]


def _count(function: Any) -> int:
    return sum(p.numel() for p in function.parameters()) if isinstance(function, nn.Module) else 0


def label_rows(
    y: Tensor, label_side: nn.Module | Callable, num_classes: int | None = None
) -> Tensor:
    """Return class numbers (B,) as one-hot rows; floats take the dtype of the label side.

    Args:
        num_classes: the width, if the label side does not show it.
    Raises:
        ValueError, RuntimeError: no width that the label side shows, or a label out of range.
    """
    parts = [*label_side.modules()] if isinstance(label_side, nn.Module) else []
    if isinstance(y, Tensor) and y.dim() == 1 and not y.is_floating_point():
        shown = (getattr(part, "in_features", 0) for part in parts)
        if not (width := num_classes or next(filter(None, shown), 0)):
            said = "g does not show how many classes there are: give alkit.one_hot(y, num_classes)"
            raise ValueError(f"y holds class numbers, and {said}")
        y = one_hot(y.long(), width)
    if parts and isinstance(y, Tensor) and y.is_floating_point():
        y = y.to(dtype_of(parts[0], y.dtype))
    return y

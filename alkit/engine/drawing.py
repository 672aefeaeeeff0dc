"""Which modules could draw random numbers, by what they are: no step is needed to find out."""

from typing import Any

from torch import nn
from torch.nn.modules import module as hooks

BASE = frozenset(vars(nn.Module()))  # attributes that every module has
QUIET = BASE | {"optimizer_factory"}  # and what no forward calls
ORIGINS = "torch.nn.modules.", "alkit."
FUNCTIONS = "torch.nn.functional", "torch._C", "torch", "alkit."
DRAWING = nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d
WORDS = "drop", "rand", "rrelu", "gumbel", "fractional", "bernoulli", "multinomial", "normal"


def may_draw(module: nn.Module) -> bool:
    """Say whether a module's forward could draw random numbers.

    False only where all its parts are torch's or alkit's own, none drops anything, and they call
    nothing of another origin: no hook, no function of a user's.
    """
    everywhere = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    return bool(everywhere) or any(map(_may_draw, module.modules()))


def loss_may_draw(loss: Any) -> bool:
    """Say the same of a loss, which may be a function."""
    return may_draw(loss) if isinstance(loss, nn.Module) else _draws("loss", loss)


def _may_draw(part: nn.Module) -> bool:
    own = vars(part)
    if not type(part).__module__.startswith(ORIGINS) or isinstance(part, DRAWING):
        return True
    if "forward" in own or own["_forward_hooks"] or own["_forward_pre_hooks"]:
        return True
    return any(_draws(name, own[name]) for name in own.keys() - QUIET)


def _draws(name: str, value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(_draws(name, each) for each in value)
    if isinstance(value, int | float):
        return value > 0 and (name == "p" or "drop" in name)
    if not callable(value):
        return False
    origin = getattr(value, "__module__", None) or "torch._C"
    called = getattr(value, "__name__", type(value).__name__)
    return not origin.startswith(FUNCTIONS) or any(word in called for word in WORDS)

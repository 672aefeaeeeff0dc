"""Initial weights by name, for any module."""

from collections.abc import Callable

from torch import Tensor, nn

__all__ = ["SCHEMES", "initialise"]

SCHEMES: dict[str, Callable[[Tensor], Tensor]] = {
    "kaiming": nn.init.kaiming_normal_,  # He et al. 2015
    "xavier": nn.init.xavier_uniform_,  # Glorot & Bengio 2010
    "normal": lambda weight: nn.init.normal_(weight, std=0.02),
}


def initialise(module: nn.Module, scheme: str) -> nn.Module:
    """Draw the weights of all linear layers and convolutions anew, and set their biases to zero.

    Embeddings, norms and LSTMs keep what they have. Draws from torch's global generator.

    Args:
        scheme: "kaiming", "xavier" or "normal".
    Returns: the module.
    Raises:
        ValueError: an unknown scheme.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme {scheme!r} of initial weights; there are {', '.join(SCHEMES)}")
    for part in module.modules():
        if isinstance(part, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            SCHEMES[scheme](part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return module

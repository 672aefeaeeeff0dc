"""Train deep networks without waiting for the end-to-end backward pass."""

from alkit.backprop import BPModel
from alkit.convert import to_al, to_bp
from alkit.device import set_device
from alkit.layers import AE, AL, ENC, ALModel, one_hot
from alkit.train import evaluate, fit, train_epoch

__version__ = "0.1.0"

__all__ = [
    "AE",
    "AL",
    "ENC",
    "ALModel",
    "BPModel",
    "evaluate",
    "fit",
    "one_hot",
    "set_device",
    "to_al",
    "to_bp",
    "train_epoch",
]

"""Delayed gradients: sequential training, DDG, Features Replay, PipeDream and flushed pipelines."""

from alkit.delayed.methods import METHODS, Method
from alkit.delayed.modules import Pipeline, even_cuts
from alkit.delayed.schedules import schedule_for
from alkit.delayed.train import Trained, train_epoch

__all__ = [
    "METHODS",
    "Method",
    "Pipeline",
    "Trained",
    "even_cuts",
    "schedule_for",
    "train_epoch",
]

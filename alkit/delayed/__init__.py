"""Delayed gradients: sequential training, DDG, Features Replay and PipeDream in one framework."""

from alkit.delayed.methods import METHODS, Method
from alkit.delayed.modules import Module, Pipeline, even_cuts, sgd
from alkit.delayed.schedules import schedule_for
from alkit.delayed.train import Record, train, train_epoch

__all__ = [
    "METHODS",
    "Method",
    "Module",
    "Pipeline",
    "Record",
    "even_cuts",
    "schedule_for",
    "sgd",
    "train",
    "train_epoch",
]

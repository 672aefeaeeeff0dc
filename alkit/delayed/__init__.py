"""Delayed gradients: sequential training, DDG, Features Replay and PipeDream in one framework.

methods, schedules      four choices a method; orders and edges
modules, stage, weights, options    a pipeline, the mathematics of a module, versions of its weights
train, fit                          an epoch on any executor; behind `alkit.fit`
"""

from alkit.delayed.methods import METHODS, Method
from alkit.delayed.modules import Pipeline, Span, even_cuts
from alkit.delayed.schedules import schedule_for
from alkit.delayed.train import Trained, train_epoch

__all__ = [
    "METHODS",
    "Method",
    "Span",
    "Pipeline",
    "Trained",
    "even_cuts",
    "schedule_for",
    "train_epoch",
]

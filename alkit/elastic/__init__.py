"""PipeTransformer: freeze layers while a network is trained, and give what becomes free to others.

record = alkit.fit(network, data, method="elastic", ranks=2, freeze="schedule")
record.losses, record.history, record.timeline, record.details.messages

freeze, balance, layout             which layers freeze, where to cut, how many stages and replicas
decider, decision                   what is decided before a segment
pipeline, stage, segment, world, sync   a segment's steps; groups that come and go; who holds what
held, memory                        a rank's bytes, counted and calculated, against a budget
store, cache, features              stored outputs of frozen layers
trainer, progress, lines            the segments of a run
"""

from alkit.elastic.examples import Examples
from alkit.elastic.network import Network, bert_classifier, vit_classifier
from alkit.elastic.optim import Recipe
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import Details

__all__ = [
    "Details",
    "Examples",
    "Network",
    "Recipe",
    "Settings",
    "bert_classifier",
    "vit_classifier",
]

"""PipeTransformer: freeze layers while a network is trained, and give what becomes free to others.

record = alkit.elastic.train(network, data, ranks=2, freeze="schedule")
record.losses, record.history, record.messages, record.timeline
"""

from alkit.elastic.examples import Examples
from alkit.elastic.network import Network, bert_classifier, bert_reader, vit_classifier
from alkit.elastic.optim import Recipe
from alkit.elastic.record import Record
from alkit.elastic.settings import Settings
from alkit.elastic.train import train

__all__ = [
    "Examples",
    "Network",
    "Recipe",
    "Record",
    "Settings",
    "bert_classifier",
    "bert_reader",
    "train",
    "vit_classifier",
]

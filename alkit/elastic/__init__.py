"""PipeTransformer: freeze layers while a network is trained, and give what becomes free to others.

record = alkit.fit(network, data, method="elastic", ranks=2, freeze="schedule")

freeze, layout      which layers freeze; where to cut, how many stages and replicas
network, encoder    units of a network; BERT and the vision transformer
units               units on ranks, and their moves
cache               stored outputs of frozen layers
stage, pipeline     units as a stage; the layout that runs, an epoch of it
trainer             before each epoch: decide, change, train
"""

from alkit.elastic.encoder import bert_classifier, vit_classifier
from alkit.elastic.network import Network
from alkit.elastic.settings import Settings
from alkit.elastic.trainer import Details

__all__ = ["Details", "Network", "Settings", "bert_classifier", "vit_classifier"]

"""Difference target propagation with learned backprop targets, and layer-parallel feedback.

net = alkit.dtp.network("tiny", channels=1)
record = alkit.fit(net, data, method="dtp", ranks=2)

pieces, block, networks       modules of torch with their inverses, blocks, the published networks
learning, targets             learning of feedback, and the way of targets down
stages, trainer, fit          blocks as stages of the engine, their ranks, a run
"""

from alkit.dtp.block import Block
from alkit.dtp.fit import Details
from alkit.dtp.networks import NETWORKS, Net, from_blocks, network
from alkit.dtp.pieces import EXACT, NoInverse, Piece, Switches
from alkit.dtp.settings import METHODS, Settings

__all__ = [
    "EXACT",
    "METHODS",
    "NETWORKS",
    "Block",
    "Details",
    "Net",
    "NoInverse",
    "Piece",
    "Settings",
    "Switches",
    "from_blocks",
    "network",
]

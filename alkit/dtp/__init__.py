"""Difference target propagation with learned backprop targets, and layer-parallel feedback.

net = alkit.dtp.network("tiny", channels=1)
record = alkit.fit(net, data, method="dtp", ranks=2)

invertible, block, networks         parts with their inverses, blocks, the published networks
convert                             feedback for torch's own modules
losses, closed_form, targets        what feedback learns, and how targets come down
feedback, noise                     one block's loop
stages, trainer, assign, fit        blocks as stages of the engine, who runs what, a run
"""

from alkit.dtp.block import Block
from alkit.dtp.convert import from_blocks
from alkit.dtp.feedback import NotFinite
from alkit.dtp.fit import Details
from alkit.dtp.invertible import NoInverse
from alkit.dtp.networks import EXACT, NETWORKS, Net, Switches, network
from alkit.dtp.settings import METHODS, Settings
from alkit.engine.group import RanksDiffer

__all__ = [
    "EXACT",
    "METHODS",
    "NETWORKS",
    "Block",
    "Details",
    "Net",
    "NoInverse",
    "NotFinite",
    "RanksDiffer",
    "Settings",
    "Switches",
    "from_blocks",
    "network",
]

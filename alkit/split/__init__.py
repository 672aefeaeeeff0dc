"""Split learning between devices and a server: federated, SplitFed and pipelined, in one engine."""

from alkit.split.methods import METHODS
from alkit.split.networks import NETWORKS, build
from alkit.split.settings import Settings
from alkit.split.train import Record, train

__all__ = ["METHODS", "NETWORKS", "Record", "Settings", "build", "train"]

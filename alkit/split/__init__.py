"""Split learning between devices and a server: federated, SplitFed and pipelined, in one engine.

methods, settings, config           the systems as rows of a table; what a run is told
server, session, round, member, waiting, turns      the server's state machine
device, head_round, tail_round, halves, tails, stream, schedule     an iteration on both sides
wire, channel, grpc_channel, listener, greeting, handshake, expect, certs   what travels, and is
                                                                            believed
planner, choosing, profile, times   where to cut
train, program, fit                 in one process; as programs; behind `alkit.fit`
"""

from alkit.split.methods import METHODS
from alkit.split.networks import NETWORKS, build
from alkit.split.settings import Settings
from alkit.split.train import Details, train

__all__ = ["METHODS", "NETWORKS", "Details", "Settings", "build", "train"]

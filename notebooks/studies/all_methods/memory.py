"""What the busiest device of each row of notebook 15 holds at its peak, a block a device.

    weights, in as many versions as the method keeps, of feedback maps and label sides too
    gradients and the optimiser's state
    what autograd keeps for the backward, counted with real batches, times the batches under way

Only the counting runs; what is under way is the method's own book (`studies.delayed.memory`).
"""

import pandas as pd
import torch
from torch import nn

import alkit
from alkit.data.parts import DataSet
from alkit.dtp import Settings, from_blocks
from alkit.dtp.learning import BlockFeedback
from studies.al.profile import profile
from studies.all_methods.runs import BLOCKS, MICRO, ROWS, TARGETS, network
from studies.common.ledger import Ledger
from studies.delayed.memory import memory

MOMENTUM, ADAM = 1, 2  # tensors that an optimiser keeps a parameter


def peak_bytes(name: str, data: DataSet, batch_size: int, width: int | None = None) -> int:
    """Return the bytes of the device that holds most; of split learning, of device or server."""
    row, blocks = ROWS[name], network(data, 0, width)
    x, y = next(iter(data.train.batches(batch_size, shuffle=False)))
    family = alkit.METHODS[row.method].family
    if family == "dtp":
        return _of_targets(blocks, x, y)
    if row.method in ("al_pipeline", "local_pipeline"):
        made = alkit.to_al if family == "al" else alkit.to_local
        own = {key: row.options[key] for key in ("recipe", "rule") if key in row.options}
        model = made(blocks, data.num_classes, x[:2], **own)
        costs = profile(model, [(x, y)], warmup=0)
        return max((2 + ADAM) * each.parameter_bytes + each.saved_bytes for each in costs)
    costs = profile(alkit.BPModel(blocks), [(x, y)], warmup=0)
    cuts = [2] if family == "split" else list(range(1, BLOCKS))
    books = {"bp": "seq", "pipelearn": "seq", "elastic": "1f1b"}
    held: pd.DataFrame = memory(
        books.get(name, name),
        costs,
        cuts,
        x.nbytes,
        micro=MICRO if name in ("1f1b", "elastic") else 1,
        states=ADAM,
    )
    return int(held.total.max())


def _of_targets(blocks: list[nn.Module], x: torch.Tensor, y: torch.Tensor) -> int:
    """Run every block's forward and one iteration of its loop; feedback maps have momentum."""
    net = from_blocks(blocks)
    run, feedback = (
        net.locally(x),
        BlockFeedback(net, Settings(feedback_lr=TARGETS["feedback_lr"], iterations=1)),
    )
    found = []
    for n, block in enumerate(net):
        ledger = Ledger(net)
        with ledger.recording():
            kept = block(run[n].x)
            if n in feedback.loops:
                feedback.learn(n, run[n], step=0)
        back = sum(own.nbytes for own in feedback.parameters(n))
        forth = sum(own.nbytes for own in block.parameters()) - back
        found.append((2 + ADAM) * forth + (2 + MOMENTUM) * back + ledger.peak)
        del kept
    return max(found)

"""What the busiest device of each row of notebook 15 holds at its peak, a block a device.

weights, in as many versions as the method keeps, of feedback maps and label sides too
gradients and the optimiser's state
what autograd keeps for the backward, counted with real batches, times the batches under way

row               versions   batches under way, d blocks above    whole inputs
bp, pipelearn     1          1                                    -
ddg, pipedream    d + 1      d + 1                                -
fr                1          1                                    d + 1
1f1b, elastic     1          min(d + 1, M) / M                    -
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import alkit
from alkit.data.parts import DataSet
from alkit.dtp import Settings, from_blocks
from alkit.dtp.learning import BlockFeedback
from studies.all_methods.runs import BLOCKS, MICRO, ROWS, TARGETS, network
from studies.common.ledger import Ledger, counting

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
        saved = _saved(model, lambda: model(x, y))
        return max(
            (2 + ADAM) * _bytes(each) + kept for each, kept in zip(model, saved, strict=True)
        )
    cuts = [2] if family == "split" else [*range(1, BLOCKS)]
    return max(_of_modules(name, blocks, cuts, x, y))


def _of_modules(
    name: str, blocks: list[nn.Module], cuts: Sequence[int], x: Tensor, y: Tensor
) -> Any:
    """Yield the bytes of each device of backprop's rows, by the table above."""
    given = [x.nbytes]
    for block in blocks:
        block.register_forward_hook(lambda *about: given.append(about[2].nbytes))
    saved = _saved(blocks, lambda: cross_entropy(nn.Sequential(*blocks)(x), y))
    bounds = [0, *cuts, len(blocks)]
    for at, (low, high) in enumerate(pairwise(bounds)):
        flying = len(bounds) - 1 - at
        kept = name in ("ddg", "pipedream")
        graphs = flying if kept else 1
        if name in ("1f1b", "elastic"):
            graphs = min(flying, MICRO) / MICRO
        weights = (1 + ADAM + (flying if kept else 1)) * sum(map(_bytes, blocks[low:high]))
        inputs = flying * given[low] if name == "fr" else 0
        yield round(weights + graphs * sum(saved[low:high]) + inputs)


def _saved(modules: Any, run: Any) -> list[int]:
    """Return the bytes that the graphs of each module keep after one forward of all."""
    ledgers = [Ledger(each) for each in modules]
    counting(modules, ledgers)
    kept = run()  # a name, or the graph is gone
    found = [each.now for each in ledgers]
    del kept
    return found


def _bytes(module: nn.Module) -> int:
    return sum(own.nbytes for own in module.parameters())


def _of_targets(blocks: list[nn.Module], x: Tensor, y: Tensor) -> int:
    """Run every block's forward and one iteration of its loop; feedback maps have momentum."""
    net = from_blocks(blocks)
    settings = Settings(feedback_lr=TARGETS["feedback_lr"], iterations=1)
    run, feedback, found = net.locally(x), BlockFeedback(net, settings), []
    for n, block in enumerate(net):
        ledger = Ledger(net)
        with ledger.recording():
            kept = block(run[n].x)
            if n in feedback.loops:
                feedback.learn(n, run[n], step=0)
        back = sum(own.nbytes for own in feedback.parameters(n))
        found.append((2 + ADAM) * (_bytes(block) - back) + (2 + MOMENTUM) * back + ledger.peak)
        del kept
    return max(found)

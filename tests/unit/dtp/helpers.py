"""Small data and networks for the tests of target propagation."""

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from alkit.data.parts import DataSet, Part
from alkit.dtp import Net, Switches, network
from alkit.dtp.block import Block


def batch(net_side: int = 32, size: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, net_side, net_side, generator=generator, dtype=torch.float64)
    return x, one_hot(torch.arange(size) % 10, 10).double()


def exact_net(name: str, activation=nn.ELU, **switches) -> Net:
    return network(name, activation=activation, switches=Switches(**switches)).double()


def linear_block(weight: Tensor, back: Tensor | None = None) -> Block:
    """One linear map without bias."""
    block = Block(nn.Linear(weight.shape[1], weight.shape[0], bias=False)).double()
    (piece,) = block.pieces
    piece.own.weight.data = weight.clone()
    piece.back.weight.data = torch.zeros(weight.T.shape).double() if back is None else back.clone()
    return block


def made_set(train: int = 96, side: int = 16, seed: int = 0) -> DataSet:
    """Pictures whose class is the brightest of ten patches, with noise."""
    generator = torch.Generator().manual_seed(seed)

    def part(size: int) -> Part:
        y = torch.arange(size) % 10
        x = 0.3 * torch.randn(size, 3, side, side, generator=generator)
        for at, label in enumerate(y.tolist()):
            x[at, label % 3, :, label] += 1.5
        return Part(x, y, 10)

    names = tuple(str(n) for n in range(10))
    return DataSet("made", part(train), part(40), part(40), 10, names)

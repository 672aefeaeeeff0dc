"""`fed` and `splitfed` as a Flower app: its engine, your network and samples, alkit's mathematics.

fed        a round    server ──weights──► all steps ──weights──► average
splitfed   a round    server ──weights──► (forward ──activations──► tail ──gradient──► backward) a
                                          step; heads and tails ──► average
"""

import copy
import io
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from alkit import split
from alkit.split.half import Half, state_of
from alkit.split.pairs import Pairs, average
from alkit.split.stream import Stream, round_count, round_steps

METHOD, DEVICES = sys.argv[1] if len(sys.argv) > 1 else "splitfed", 2
CUT = {"fed": 3, "splitfed": 1}[METHOD]  # units on a device
ABOUT = {"method": METHOD, "devices": DEVICES, "units": 3, "epochs": 2, "batch": 16}
SETTINGS = split.Settings(cuts=(CUT,), **ABOUT)
OPTIMIZER = partial(torch.optim.SGD, lr=SETTINGS.lr, momentum=0.9)
client, server, RESULT = ClientApp(), ServerApp(), dict[str, torch.Tensor]()


def network() -> list[nn.Module]:
    """Your own network as units, the same on all parties."""
    torch.manual_seed(0)
    sides = nn.Linear(20, 32), nn.Linear(32, 32)
    return [*(nn.Sequential(own, nn.ReLU()) for own in sides), nn.Linear(32, 4)]


def samples(device: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Your own samples; a device knows its own alone."""
    draw = torch.Generator().manual_seed(device)
    x = torch.randn(50 + 20 * device, 20, generator=draw)
    return x, x[:, :4].argmax(1)


@client.train()
def device(message: Message, context: Context) -> Message:
    """Do one act of a device; what lives on from call to call lies in the context."""
    told, at = message.content["told"], int(context.node_config["partition-id"])
    stream, own = Stream(*samples(at), SETTINGS, at), {"seed": SETTINGS.seed, "device": at}
    half = Half(network()[:CUT], OPTIMIZER, is_last=METHOD == "fed", **own)
    if "half" in context.state:
        kept = torch.load(io.BytesIO(context.state["half"]["bytes"]), weights_only=True)
        half.load(kept["weights"])
        half.optimizer.load_state_dict(kept["optimizer"])
    if "weights" in message.content:  # a round begins
        half.load(message.content["weights"].to_torch_state_dict())
    act, number, sent = told["act"], told["number"], None
    for step in round_steps(SETTINGS, len(stream.y), number) if act == "round" else ():
        half.begin(step)
        half.forward([*stream.step(step, 1)], 0, 0)
        half.backward(None, 0, 0)
        half.update(None, 0, 0)
    if act in ("forward", "backward"):  # the first leaves nothing, the second runs it again
        running = copy.deepcopy(half) if act == "forward" else half
        running.begin(number)
        x, y, _ = running.forward([*stream.step(number, 1)], 0, 0)
        sent = {"x": x, "y": y}
    if act == "backward":
        half.backward(message.content["gradient"].to_torch_state_dict()["x"], 0, 0)
        half.update(None, 0, 0)
    kept = {"weights": half.state(), "optimizer": half.optimizer.state_dict()}
    torch.save(kept, file := io.BytesIO())
    context.state["half"] = ConfigRecord({"bytes": file.getvalue()})
    about = MetricRecord({"device": at, "samples": len(stream.y)})
    arrays = ArrayRecord(sent if act == "forward" else half.state())
    return Message(RecordDict({"arrays": arrays, "about": about}), reply_to=message)


def ask(
    grid: Grid, act: str, numbers: Iterable[int], nodes: Sequence[int], **arrays: list[dict]
) -> list[tuple]:
    """Have devices do an act; return (device, node, samples, arrays) of each, by device."""
    messages, found = [], []
    for at, (node, number) in enumerate(zip(nodes, numbers, strict=False)):
        told = RecordDict({"told": ConfigRecord({"act": act, "number": number})})
        for name, own in arrays.items():
            told[name] = ArrayRecord(own[at])
        messages.append(Message(told, node, "train"))
    for reply in grid.send_and_receive(messages):
        about, own = reply.content["about"], reply.content["arrays"].to_torch_state_dict()
        found.append((about["device"], reply.metadata.src_node_id, about["samples"], own))
    return sorted(found, key=lambda one: one[0])


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Drive the rounds, and average what devices and their tails have trained."""
    units, make = network(), OPTIMIZER
    own = {"first": CUT, "stage": 1, "is_last": True, "seed": SETTINGS.seed}
    state, pipes = state_of(nn.ModuleList(units)), range(DEVICES)
    while len(there := list(grid.get_node_ids())) < DEVICES:
        time.sleep(0.1)
    _, nodes, sizes, _ = zip(*ask(grid, "hello", repeat(0), there), strict=True)
    tails = [Half(copy.deepcopy(units[CUT:]), make, device=at, **own) for at in pipes]
    for number in range(round_count(SETTINGS, list(sizes))):
        begun = {name: tensor for name, tensor in state.items() if int(name.split(".")[0]) < CUT}
        steps = [round_steps(SETTINGS, size, number) for size in sizes]
        for tail in tails:
            tail.load(state)
        for place in range(max(map(len, steps)) if METHOD == "splitfed" else 0):
            busy = [at for at in pipes if place < len(steps[at])]
            near, now, gradients = [nodes[at] for at in busy], [steps[at][place] for at in busy], []
            first = {} if place else {"weights": [begun] * len(busy)}
            sent = ask(grid, "forward", now, near, **first)
            for at, step, (*_, act) in zip(busy, now, sent, strict=True):
                tails[at].begin(step)
                tails[at].forward((act["x"], act["y"], 1.0), 0, 0)
                gradients.append({"x": tails[at].backward(None, 0, 0)})
                tails[at].update(None, 0, 0)
            ask(grid, "backward", now, near, gradient=gradients)
        act, last = (
            ("hello", {}) if METHOD == "splitfed" else ("round", {"weights": [begun] * DEVICES})
        )
        ended = ask(grid, act, repeat(number), nodes, **last)
        states = [arrays | tails[at].state() for at, (*_, arrays) in enumerate(ended)]
        state = average(states, [*sizes])
    RESULT.update(state)


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=DEVICES)
    streams = [Stream(*samples(at), SETTINGS, at) for at in range(DEVICES)]
    here = Pairs(network(), SETTINGS, streams, OPTIMIZER)
    for number in range(here.rounds):
        here.round(number)
    apart = max(float((RESULT[name] - own).abs().max()) for name, own in here.state.items())
    print(f"{METHOD}: weights differ from alkit's own by at most {apart:.0e}")
    sys.exit(apart > 1e-6)

"""A device with a certificate that sends what is well formed and wrong: it is told so in a sentence
and left out, and the others end in the bits that they would have had without it."""

import json
import re
import threading
from dataclasses import replace

import pytest
import torch

from alkit.split.certs import certificates_in, make
from alkit.split.choosing import Choosing
from alkit.split.device import Refused
from alkit.split.expect import Due, Expect
from alkit.split.grpc_channel import connect
from alkit.split.listener import Listener
from alkit.split.planner import Workload
from alkit.split.profile import Machine, Unit
from alkit.split.round import Attendance
from alkit.split.times import Line
from alkit.split.train import _record
from alkit.split.waiting import QuorumLost
from alkit.split.wire import Message, WireError
from tests.unit.split.helpers import parts, same_bits, units
from tests.unit.split.test_faults import SIZES, Lab, wait_until, whole

NAN, INF = float("nan"), float("inf")
UNIT = Unit(Line(0.0, 1e-4), Line(0.0, 1e-4), 1e-4, 100.0, 100.0, 10)


class Fixed(Choosing):
    """Plans, and then chooses the same for all."""

    def first(self, device, machine, probed):
        super().first(device, machine, probed)
        return 2, 3

    def again(self, device, record):
        return None


class Hostile(Lab):
    """Device 1 changes one message; device 0 is honest. Who they are is sure, as certificates
    make it."""

    hostile = (1,)

    def __init__(self, folder, kind, change, profile=False, **options):
        self.kind, self.change, self.profile = kind, change, profile
        super().__init__(folder, epochs=2, **options)

    def new_server(self):
        server = super().new_server()
        if self.profile:
            workloads = [Workload(8, size, 432.0) for size in SIZES]
            server.choosing, server.profile = Choosing(Machine((UNIT,) * 4), workloads), 1
            server.choosing.__class__ = Fixed
        return server

    def connect(self, index):
        near = super().connect(index, identity=index)
        send = near.send

        def changing(message):
            hurt = index in self.hostile and message.kind == self.kind
            send(self.change(message) if hurt else message)

        near.send = changing
        return near

    def run(self):
        """Begin with the server, so that the first round is open when the devices come."""
        failed = []
        runner = threading.Thread(target=lambda: failed.extend(ended(self.server.run)))
        runner.start()
        wait_until(lambda: self.server.open.assignments)
        lives = [threading.Thread(target=self.live, args=(at,)) for at in range(len(SIZES))]
        for life in lives:
            life.start()
        for thread in [runner, *lives, *self.threads]:
            thread.join(60)
            assert not thread.is_alive()
        assert not failed
        return _record(self.server, [])


def ended(work):
    """Return what a call ends with, if that is an error."""
    try:
        work()
    except BaseException as error:
        return [error]
    return []


def without_device_1(**options):
    """An undisturbed run in which device 1 never comes."""
    options = {"epochs": 2} | options
    alone = [Attendance({0: attendance[0]}) for attendance in whole(**options).plan]
    return whole(**options, plan=alone)


# ---- what is changed


def tensor(name, change):
    return lambda m: replace(m, tensors={**m.tensors, name: change(m.tensors[name])})


def more(name, value):
    return lambda m: replace(m, tensors={**m.tensors, name: value})


def less(name):
    return lambda m: replace(m, tensors={k: v for k, v in m.tensors.items() if k != name})


def value(**changes):
    return lambda m: replace(m, values={**m.values, **changes})


def place(**changes):
    return lambda m: replace(m, **changes)


def other(kind, **values):
    return lambda m: Message(kind, m.round, m.step, m.micro, values=values)


def first(number):
    """Change the first number of a tensor."""

    def changed(found):
        found = found.clone()
        found.view(-1)[0] = number
        return found

    return changed


def unit(**changes):
    """Change the first unit's profile."""

    def changed(m):
        plain = json.loads(m.values["text"])
        plain["units"][0] |= changes
        return replace(m, values={**m.values, "text": json.dumps(plain)})

    return changed


def machine(change):
    """Change a whole profile."""
    return lambda m: replace(
        m, values={**m.values, "text": json.dumps(change(json.loads(m.values["text"])))}
    )


DONE = {"samples": 17, "loss": 0.0, "right": 0}
ACTS = {
    "features of a sample less": (tensor("x", lambda x: x[:-1]), "where .3, 6, 3, 3. .* due"),
    "features of no sample": (tensor("x", lambda x: x[:0]), "where .3, 6, 3, 3. .* due"),
    "features of more channels": (tensor("x", lambda x: torch.cat([x, x], 1)), "12, 3, 3"),
    "features of another side": (tensor("x", lambda x: x[..., :2]), "6, 3, 2"),
    "features of another order": (tensor("x", lambda x: x.movedim(1, 3)), "3, 3, 6"),
    "features laid flat": (tensor("x", lambda x: x.flatten(1)), "3, 54"),
    "features of rank 5": (tensor("x", lambda x: x[None]), "1, 3, 6, 3, 3"),
    "features of rank 0": (tensor("x", lambda x: x.sum()), r"x .* is \(\)"),
    "features in double": (tensor("x", torch.Tensor.double), "float64"),
    "features in half": (tensor("x", torch.Tensor.half), "float16"),
    "features in bfloat16": (tensor("x", torch.Tensor.bfloat16), "bfloat16"),
    "features that are whole": (tensor("x", torch.Tensor.long), "int64"),
    "features that are truths": (tensor("x", torch.Tensor.bool), "bool"),
    "a feature that is no number": (tensor("x", first(NAN)), "not finite"),
    "an endless feature": (tensor("x", first(-INF)), "not finite"),
    "a label above the classes": (tensor("y", first(4)), "0 to 3"),
    "a label below": (tensor("y", first(-1)), "0 to 3"),
    "labels that torch leaves out": (tensor("y", lambda y: torch.full_like(y, -100)), "0 to 3"),
    "a label of 2 ** 62": (tensor("y", first(2**62)), "0 to 3"),
    "labels in int32": (tensor("y", torch.Tensor.int), "int32"),
    "labels in float": (tensor("y", torch.Tensor.float), "float32"),
    "labels of a sample less": (tensor("y", lambda y: y[:-1]), r"where \(3,\) .* due"),
    "labels as columns": (tensor("y", lambda y: y[:, None]), r"where \(3,\) .* due"),
    "no labels": (less("y"), "lacks y"),
    "no features": (less("x"), "lacks x"),
    "a third tensor": (more("z", torch.zeros(1)), "carries z"),
    "another round": (place(round=7), "round 7"),
    "another step": (place(step=7), "step 7"),
    "another micro-batch": (place(micro=7), "step 0.7"),
    "a share that is no number": (value(share=NAN), "share .* nan"),
    "another share": (value(share=2.0), "share .* 2.0"),
    "done at once": (other("done", **DONE), "done of round 0"),
    "a clock again": (other("clock", offset_s=0.0), "clock of round 0"),
    "a kind of the server's": (other("grad"), "grad of round 0"),
}
LATE = {
    "no intervals": (less("intervals"), "lacks intervals"),
    "intervals of other columns": (tensor("intervals", lambda t: t[:, :5]), "rows of 7"),
    "an interval that is no number": (tensor("intervals", first(NAN)), "not finite"),
    "an endless interval": (tensor("intervals", lambda t: t + INF), "not finite"),
    "intervals in float": (tensor("intervals", torch.Tensor.float), "float32"),
    "an interval of lane 9": (tensor("intervals", first(9.0)), "lane 9"),
    "an interval of a step of 1e300": (
        tensor("intervals", lambda t: t.index_fill(1, torch.tensor([2]), 1e300)),
        "batch .* 10000",
    ),
    "an interval that ends first": (
        tensor("intervals", lambda t: t * torch.tensor([1, 1, 1, 1, 1, -1, 1]).double()),
        "from",
    ),
    "no losses": (less("losses"), "lacks losses"),
    "losses of too many steps": (tensor("losses", lambda t: torch.zeros(9).double()), "losses"),
    "a weight less": (less("state.0.0.weight"), "lacks state.0.0.weight"),
    "no weights": (
        lambda m: replace(m, tensors={k: v for k, v in m.tensors.items() if "state" not in k}),
        "lacks state",
    ),
    "a weight of another shape": (tensor("state.0.0.weight", lambda t: t[:1]), "is .1, 3, 3, 3."),
    "a weight that is no number": (tensor("state.0.0.weight", first(NAN)), "not finite"),
    "an endless weight": (tensor("state.0.0.bias", first(INF)), "not finite"),
    "a weight in double": (tensor("state.0.0.weight", torch.Tensor.double), "float64"),
    "a weight of the tail": (more("state.3.weight", torch.zeros(4, 16)), "carries state.3.weight"),
    "a weight of no unit": (more("state.x.weight", torch.zeros(1)), "carries state.x.weight"),
    "samples of -5": (value(samples=-5), "samples .* -5"),
    "samples of 10 ** 15": (value(samples=10**15), "samples .* 10000"),
    "a sample more": (value(samples=18), "samples .* 18"),
    "right ones below zero": (value(right=-1), "right .* -1"),
    "more right than samples": (value(right=18), "right .* 18"),
    "a loss that is no number": (value(loss=NAN), "loss .* nan"),
    "a loss of 10 ** 400": (value(loss=10**400), "loss .* 10000"),
    "done of another step": (place(step=99), "step 99"),
    "features after the last": (other("act", share=1.0), "act of round 0"),
}
ALONE = {  # of a device that has all units
    "a loss too few": (tensor("losses", lambda t: t[:-1]), "losses"),
    "a loss in float": (tensor("losses", torch.Tensor.float), "float32"),
    "a loss of a step that is no number": (tensor("losses", first(NAN)), "not finite"),
    "right ones of 10 ** 30": (value(right=10**30), "right .* 10000"),
    "a weight of the last unit less": (less("state.3.bias"), "lacks state.3.bias"),
}
GREETINGS = {
    "a clock off by 10 ** 400": ("clock", value(offset_s=10**400), "offset_s .* 10000"),
    "a clock off by no number": ("clock", value(offset_s=NAN), "offset_s .* nan"),
    "a clock off for ever": ("clock", value(offset_s=INF), "offset_s .* inf"),
    "a clock off by 1e300": ("clock", value(offset_s=1e300), "offset_s .* 1e.300"),
    "a probe with a load": ("probe", more("x", torch.zeros(9)), "carries x"),
    "features for a clock": ("clock", other("act", share=1.0), "act .* clock was due"),
}
PROFILES = {
    "deep JSON": ("profile", value(text="[" * 30_000), "profile"),
    "no JSON": ("profile", value(text="{"), "profile"),
    "a list": ("profile", value(text="[]"), "profile"),
    "units that are numbers": ("profile", value(text='{"units":[1],"memory_bytes":1}'), "profile"),
    "texts for numbers": ("profile", unit(update_s="1"), "update_s .* '1'"),
    "texts for a line": ("profile", unit(forward="ab"), "forward .* 'a'"),
    "a unit less": ("profile", machine(lambda p: p | {"units": p["units"][1:]}), "3 units"),
    "a unit more": ("profile", machine(lambda p: p | {"units": p["units"][:1] * 5}), "5 units"),
    "times below zero": ("profile", unit(backward=[-1.0, 0.0]), "backward .* -1"),
    "a time that is no number": ("profile", unit(forward=[NAN, 0.0]), "forward .* nan"),
    "endless bytes": ("profile", unit(output_bytes=INF), "output_bytes .* inf"),
    "bytes of 10 ** 400": ("profile", unit(saved_bytes=10**400), "saved_bytes .* 10000"),
    "a text for the memory": ("profile", machine(lambda p: p | {"memory_bytes": "x"}), "memory"),
    "memory below zero": ("profile", machine(lambda p: p | {"memory_bytes": -1}), "memory"),
    "a downlink of no number": ("profile", value(down_bps=NAN), "down_bps .* nan"),
    "a downlink below zero": ("profile", value(down_bps=-1.0), "down_bps .* -1"),
    "a load of 64 KiB": ("load", tensor("load", lambda t: t[: 1 << 16]), "65536"),
    "a load of numbers": ("load", tensor("load", lambda t: torch.zeros(1 << 18)), "float32"),
    "no load": ("load", less("load"), "lacks load"),
}


@pytest.fixture(scope="module")
def undisturbed():
    """Runs without device 1, by cut."""
    return {cut: without_device_1(cut=cut, micro=3 if cut == 2 else 1) for cut in (2, 4)}


def check(lab, undisturbed, words, caplog):
    record = lab.run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 2
    assert same_bits(record, undisturbed)
    [told] = lab.errors
    assert type(told).__name__ == "Refused"
    assert re.search(words, str(told)), str(told)
    assert any(line == f"device 1 is dropped: {told}" for line in caplog.messages)


def cases(table, kind):
    return [pytest.param(kind, *row, id=name) for name, row in table.items()]


@pytest.mark.parametrize(("kind", "change", "words"), cases(ACTS, "act") + cases(LATE, "done"))
def test_the_round_goes_on_without_who_sends_nonsense(
    tmp_path, caplog, undisturbed, kind, change, words
):
    check(Hostile(tmp_path, kind, change), undisturbed[2], words, caplog)


@pytest.mark.parametrize(("kind", "change", "words"), cases(ALONE, "done"))
def test_federated_nonsense(tmp_path, caplog, undisturbed, kind, change, words):
    check(Hostile(tmp_path, kind, change, cut=4, micro=1), undisturbed[4], words, caplog)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [pytest.param(*row, id=name) for name, row in (GREETINGS | PROFILES).items()],
)
def test_nonsense_in_a_greeting(tmp_path, caplog, undisturbed, kind, change, words, request):
    profile = request.node.callspec.id in PROFILES
    check(Hostile(tmp_path, kind, change, profile=profile), undisturbed[2], words, caplog)


LARGE = tensor("x", lambda x: torch.full_like(x, 3e38))


@pytest.mark.parametrize(
    "options",
    [
        {"cut": 3},
        {"cut": 3, "immediate": True},
        {"cut": 1, "norm": "batch", "least": 2},
        {"cut": 3, "micro": 1, "method": "splitfed"},
        {"cut": 3, "micro": 1, "method": "splitfed2"},
        {"cut": 3, "micro": 1, "method": "split"},
    ],
    ids=str,
)
@pytest.mark.parametrize("change", [tensor("x", first(NAN)), LARGE], ids=["nan", "large"])
def test_no_tail_takes_it(tmp_path, caplog, options, change):
    """Also where devices share a tail, and where finite features are too large for it."""
    expected = without_device_1(**{"micro": 3} | options)
    check(Hostile(tmp_path, "act", change, **options), expected, "not finite", caplog)


def test_a_time_that_is_none_and_a_hello_of_nonsense():
    expect = Expect(units(), parts(SIZES)[0][0][:1])
    hello = {"device": 0, "job": "", "network": "", "round": -1, "step": -1, "saved": []}
    expect.check(Message("hello", values=hello), Due("hello"))
    for wrong, words in [
        (Message("hello", values=hello, sent_s=NAN), "no time"),
        (Message("hello", values=hello | {"saved": [[0, "1"]]}), "a round and a cut"),
        (Message("hello", values=hello | {"saved": [3]}), "a round and a cut"),
        (Message("hello", values=hello | {"round": 10**30}), "round of hello"),
        (Message("hello", values=hello | {"step": -2}), "step of hello"),
        (Message("probe"), "a hello was due"),
    ]:
        with pytest.raises(WireError, match=words):
            expect.check(wrong, Due("hello"))


def test_all_devices_send_nonsense(tmp_path):
    """Then there is nothing to average, and the reasons are told."""
    lab = Hostile(tmp_path, "act", tensor("x", first(NAN)))
    lab.hostile = (0, 1)
    lives = [threading.Thread(target=lab.live, args=(at,)) for at in range(len(SIZES))]
    for life in lives:
        life.start()
    with pytest.raises(QuorumLost, match="device 1: x of act .* not finite"):
        lab.server.run()
    for thread in [*lives, *lab.threads]:
        thread.join(60)
        assert not thread.is_alive()


def test_one_after_the_other_beside_an_honest_device(tmp_path):
    """Through gRPC, with certificates; device 1 comes again and again, and is refused each time."""
    make(tmp_path / "lab", 2)
    lab = Lab(tmp_path, epochs=5)
    attacks = [tensor("x", first(NAN)), place(round=7), less("y"), tensor("y", first(9))]
    options = {"streams": 8, "certificates": certificates_in(tmp_path / "lab", "server")}
    listener = Listener(lab.server.join, **options)
    refused = []

    def linked(index, change=None):
        own = certificates_in(tmp_path / "lab", f"device-{index}")
        channel = connect(f"localhost:{listener.port}", own)
        send = channel.send
        if change is not None:
            channel.send = lambda m: send(change(m) if m.kind == "act" else m)
        return channel

    def attack():
        for change in attacks:
            try:
                lab.device(1).run(lambda change=change: linked(1, change))
            except Refused as error:
                refused.append(str(error))

    def hold(record):
        """The next round begins when device 1 has come again."""
        wait_until(lambda: 1 in lab.server.channels or not attacker.is_alive())

    attacker = threading.Thread(target=attack)
    honest = threading.Thread(target=lambda: lab.device(0).run(lambda: linked(0)))
    lab.server.report = hold
    runner = threading.Thread(target=lab.server.run)
    runner.start()
    wait_until(lambda: lab.server.open.assignments)
    attacker.start()
    honest.start()
    for thread in (runner, attacker, honest):
        thread.join(120)
        assert not thread.is_alive()
    listener.close()
    assert same_bits(_record(lab.server, []), without_device_1(epochs=5))
    assert len(refused) == len(attacks)

"""A device with a certificate that sends what is well formed and wrong: it is told so in a sentence
and left out, and the others end in the bits that they would have had without it."""

import asyncio
import json
import math
import re
from dataclasses import replace

import pytest
import torch

from alkit.split.average import DIVERGED, agreed, average
from alkit.split.certs import certificates_in, make
from alkit.split.check import Check
from alkit.split.choosing import Choosing
from alkit.split.grpc_link import connect, listen
from alkit.split.link import Refused
from alkit.split.planner import Workload
from alkit.split.profile import Machine, Unit
from alkit.split.rounds import Attendance
from alkit.split.times import Line
from alkit.split.train import _record
from alkit.split.waiting import QuorumLost
from alkit.split.wire import Message, WireError
from tests.unit.split.helpers import parts, same_bits, units
from tests.unit.split.lab import LIMIT_S, SIZES, Lab, hold, until, whole

INF, NAN = math.inf, math.nan


class Fixed(Choosing):
    """Profiles devices, and lets them do what they would without."""

    def first(self, device, machine, probed):
        self.meet(device, machine, probed)
        return 2, 3

    def again(self, device, record):
        return None


class Hostile(Lab):
    """Device 1 changes the messages of one kind."""

    def __init__(self, folder, kind, change, *, profile=False, **options):
        if profile:
            unit = Unit(Line(each=1.0), Line(each=1.0), 0.0, 1.0, 0.0, 1)
            choosing = Fixed(Machine((unit,) * 4), [Workload(8, size, 432.0) for size in SIZES])
            options["more"] = {"choosing": choosing, "profile": 1}

        def changed(message):
            return change(message) if message.kind == kind else message

        options = {"epochs": 2, "grace_s": 0.3, "join_s": 20.0} | options
        super().__init__(folder, change=changed, **options)

    async def connect(self, index, identity=None):
        return await super().connect(index, index)


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


DONE = {"samples": 17, "right": 0}
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
    "done at once": (other("done", **DONE), "done of round 0"),
    "a probe again": (other("probe"), "probe of round 0"),
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
    "a weight less": (less("0.0.weight"), "lacks 0.0.weight"),
    "no weights": (
        lambda m: replace(m, tensors={k: v for k, v in m.tensors.items() if not k[0].isdecimal()}),
        "lacks 0.0",
    ),
    "a weight of another shape": (tensor("0.0.weight", lambda t: t[:1]), "is .1, 3, 3, 3."),
    "a weight that is no number": (tensor("0.0.weight", first(NAN)), "not finite"),
    "an endless weight": (tensor("0.0.bias", first(INF)), "not finite"),
    "a weight in double": (tensor("0.0.weight", torch.Tensor.double), "float64"),
    "a weight of the tail": (more("3.weight", torch.zeros(4, 16)), "carries 3.weight"),
    "a weight of no unit": (more("x.weight", torch.zeros(1)), "carries x.weight"),
    "samples of -5": (value(samples=-5), "samples .* -5"),
    "samples of 10 ** 15": (value(samples=10**15), "samples .* 10000"),
    "a sample more": (value(samples=18), "samples .* 18"),
    "right ones below zero": (value(right=-1), "right .* -1"),
    "more right than samples": (value(right=18), "right .* 18"),
    "intervals without end": (
        tensor("intervals", lambda t: t[:1].repeat(600_000, 1)),
        "600000 intervals, and .* would be many",
    ),
    "done of another step": (place(step=99), "step 99"),
    "features after the last": (other("act"), "act of round 0"),
}
ALONE = {  # of a device that has all units
    "a loss too few": (tensor("losses", lambda t: t[:-1]), "losses"),
    "a loss in float": (tensor("losses", torch.Tensor.float), "float32"),
    "a loss of a step that is no number": (tensor("losses", first(NAN)), "not finite"),
    "right ones of 10 ** 30": (value(right=10**30), "right .* 10000"),
    "a weight of the last unit less": (less("3.bias"), "lacks 3.bias"),
}
GREETINGS = {
    "a probe with a load": ("probe", more("x", torch.zeros(9)), "carries x"),
    "features for a probe": ("probe", other("act"), "act .* probe was due"),
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
    "an arrival of no time": ("profile", value(arrived_s=NAN), "arrived_s .* nan"),
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
    told = lab.said[1]
    assert re.search(words, told), told
    assert any(line.endswith(f"is dropped: {told}") for line in caplog.messages)


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


@pytest.mark.parametrize("sent_s", [NAN, INF, 1e300])
def test_a_time_that_is_none(sent_s):
    with pytest.raises(WireError, match="time of probe"):
        Check(units(), parts(SIZES)[0][0][:1]).probe(Message("probe", sent_s=sent_s))


def test_all_devices_send_nonsense(tmp_path):
    """Then there is nothing to average, and the reasons are told."""
    lab = Hostile(tmp_path, "act", tensor("x", first(NAN)), join_s=1.0)
    lab.hostile = (0, 1)
    with pytest.raises(QuorumLost, match="device 1: x of act .* not finite"):
        lab.run()


# ---- weights that are well formed, and poison


def weights(change):
    return lambda m: replace(
        m,
        tensors={k: change(k, t) if k[0].isdecimal() else t for k, t in m.tensors.items()},
    )


def test_whoever_sends_the_largest_weights_is_blamed(tmp_path, caplog, undisturbed):
    """Not the honest device, whose features they would make infinite."""
    lab = Hostile(tmp_path, "done", weights(lambda k, t: t * 1e20))
    record = lab.run()
    assert [sorted(each.weights) for each in record.rounds] == [[0]] * 2
    assert same_bits(record, undisturbed[2])
    words = r"device 1 is left out of the average of round 0: its weights have changed by .*e\+"
    assert any(re.search(words, line) for line in caplog.messages)


def test_an_average_that_gives_no_numbers_is_not_taken():
    before = {"w": torch.zeros(3)}
    states = {0: {"w": torch.ones(3)}, 1: {"w": torch.full((3,), 9.0)}, 2: {"w": torch.ones(3) * 2}}
    samples = {0: 1, 1: 1, 2: 3}

    def runs(state):
        return bool(state["w"].max() < 3)

    state, blamed = agreed(before, states, samples, runs)
    assert state["w"].tolist() == [1.75] * 3
    assert blamed == {1: "the network with its weights " + DIVERGED}
    assert agreed(before, states, samples, lambda state: False)[0] is None


def test_whoever_changes_nothing_makes_nobody_stand_out():
    before, rest = {"w": torch.ones(3)}, {"w": torch.ones(3) + 1e-7}
    states = {0: {"w": torch.full((3,), 2.0)}, 1: rest}
    state, blamed = agreed(before, states, {0: 1, 1: 1}, lambda state: True, most=1000.0)
    assert not blamed
    assert state["w"].tolist() == pytest.approx([1.5] * 3)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("0.1.running_var", -1000.0, "below zero"), ("0.1.num_batches_tracked", 10**9, "10000")],
)
def test_buffers_that_can_not_be_are_refused(tmp_path, caplog, name, value, words):
    poison = tensor(name, lambda t: torch.full_like(t, value))
    lab = Hostile(tmp_path, "done", poison, norm="batch", least=2)
    check(lab, without_device_1(norm="batch"), words, caplog)


def test_the_median_of_three_is_no_poisoned_one():
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([-50.0, 80.0])}]
    states.append({"w": torch.tensor([3.0, 4.0])})
    assert average(states, [1, 1, 1], "median")["w"].tolist() == [1.0, 4.0]
    five = [*states, {"w": torch.tensor([2.0, 3.0])}, {"w": torch.tensor([2.0, 3.0])}]
    expected = [(1 + 2 + 2) / 3, (3 + 3 + 4) / 3]
    assert average(five, [1] * 5, "trimmed")["w"].tolist() == pytest.approx(expected)


def test_intervals_of_another_clock_are_left_out(tmp_path):
    """A device may say of its lanes what it likes: what lies outside of its round is not kept."""
    shift = torch.tensor([0, 0, 0, 0, 1e6, 1e6, 0]).double()
    lab = Hostile(tmp_path, "done", tensor("intervals", lambda t: t + shift))
    record = lab.run()
    assert {0, 1} == set(record.rounds[0].weights)
    assert record.timeline.busy_s("device 0") > 0
    assert record.timeline.busy_s("device 1") == 0
    assert record.timeline.span_s < LIMIT_S


def test_one_after_the_other_beside_an_honest_device(tmp_path):
    """Through gRPC, with certificates; device 1 comes again and again, and is refused each time."""
    make(tmp_path / "lab", 2)
    lab = Lab(tmp_path, epochs=5)
    attacks = [tensor("x", first(NAN)), place(round=7), less("y"), tensor("y", first(9))]
    refused = []

    async def all_of_it():
        own = certificates_in(tmp_path / "lab", "server")
        async with listen(lab.server.join, certificates=own, streams=8) as port:

            async def linked(index, change=None):
                shown = certificates_in(tmp_path / "lab", f"device-{index}")
                link = await connect(f"localhost:{port}", shown)
                send = link.send

                async def sending(message):
                    await send(change(message) if message.kind == "act" else message)

                if change is not None:
                    link.send = sending
                return link

            async def attack():
                for change in attacks:
                    try:
                        await lab.device(1).run(lambda change=change: linked(1, change))
                    except Refused as error:
                        refused.append(str(error))

            running = asyncio.create_task(lab.server.run())
            honest = asyncio.create_task(lab.device(0).run(lambda: linked(0)))
            attacking = asyncio.create_task(attack())
            waited = asyncio.create_task(until(lambda: attacking.done()))

            def again():  # the next round begins when device 1 has come again
                return 1 in lab.server.lobby.links or waited.done()

            lab.server.report = lambda record: hold(again)
            await asyncio.gather(running, honest, attacking, waited)

    asyncio.run(asyncio.wait_for(all_of_it(), LIMIT_S))
    assert same_bits(_record(lab.server, []), without_device_1(epochs=5))
    assert len(refused) == len(attacks)

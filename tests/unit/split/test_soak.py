"""Long tests of split learning: kills and cuts at random moments, on queues and on real links."""

import random
import signal
import time

import psutil
import pytest
import torch

from studies.split.links import Links, LinksUnavailable
from tests.unit.split.helpers import same_bits
from tests.unit.split.lab import Lab, whole
from tests.unit.split.test_program import Run

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("seed", range(60))
def test_random_kills_change_nothing(tmp_path, seed):
    draw = random.Random(seed)
    hurts = [
        (draw.randint(0, 1), draw.randint(1, 60), draw.choice(("cut", "kill")))
        for _ in range(draw.randint(1, 5))
    ]
    assert same_bits(Lab(tmp_path, hurts).run(), whole())


@pytest.mark.parametrize("seed", range(5))
def test_processes_killed_at_random(tmp_path, seed):
    draw = random.Random(seed)
    with Run(tmp_path, epochs=12) as run:
        for _ in range(3):
            time.sleep(draw.uniform(1, 4))
            who = draw.choice((0, 1, "server"))
            old = run.server if who == "server" else run.devices[who]
            if old.poll() is not None:
                break
            old.send_signal(signal.SIGKILL)
            old.wait()
            again = run.start("server") if who == "server" else run.start("device", "--index", who)
            if who == "server":
                run.server = again
            else:
                run.devices[who] = again
        run.wait(run.server, *run.devices)
        state, expected = run.model(), run.in_process().state
        assert all(torch.equal(state[key], expected[key]) for key in state)


def test_a_cut_link(tmp_path):
    """The kernel takes the link away: the round waits, and the bits stay the same."""
    try:
        links = Links(2, 50, 50)
    except LinksUnavailable as error:
        pytest.skip(f"no real links here: {error}")
    with links, Run(tmp_path, epochs=40, patience_s=4, links=links) as run:
        run.after_rounds(3)
        links.cut(1)
        time.sleep(10)
        links.mend(1)
        run.wait(run.server, *run.devices)
        state, expected = run.model(), run.in_process().state
        assert all(torch.equal(state[key], expected[key]) for key in state)


def test_five_hundred_rounds_hold_no_more_than_a_few(tmp_path):
    """A round's events are written at its end and forgotten."""
    with Run(tmp_path, epochs=170, aggregate_every=1, batch=100, data_size=300) as run:
        held = psutil.Process(run.server.pid)
        seldom = {"look_s": 2.0, "limit_s": 3600.0}
        run.after_rounds(100, **seldom)
        early = held.memory_info().rss
        run.after_rounds(480, **seldom)
        assert held.memory_info().rss - early < 24 << 20
        run.wait(run.server, *run.devices)

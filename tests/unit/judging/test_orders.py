"""Orders in files: what can be run is described, what can't is named by rank, position and task."""

import re

import pytest

from alkit.command import main
from alkit.schedule.torch_orders import SEVERAL, to_csv, torch_order

SENT = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
SENT += "1RECV_F0,1F0,1B0,1RECV_F1,1SEND_B0,1F1,1B1,1SEND_B1\n"
FAULTS = {
    "sends in another order": (
        SENT.replace("1RECV_F1,1SEND_B0", "1SEND_B0,1RECV_F1"),
        r"a deadlock: rank 0, position 3 \(0SEND_F1\), which waits for rank 1, position 3",
    ),
    "a backward before its forward": ("0B0,0F0\n", r"deadlock: rank 0, position 0 \(0B0\)"),
    "twice": ("0F0,0B0,0F0\n", r"rank 0, position 2 \(0F0\) is there twice"),
    "none": (
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n",
        "stage 1 needs a forward and a backward of micro-ba",
    ),
    "a stage that nobody has": ("0F0,0B0\n", "1 stages and 1 micro-batches are in the file"),
}


@pytest.fixture
def judged(tmp_path, capsys):
    """The command on a file of this text: its exit code, and what it says."""

    def call(text, *options):
        (tmp_path / "order.csv").write_text(text)
        code = main(["judge", str(tmp_path / "order.csv"), *options])
        return code, "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize("name", SEVERAL)
def test_torch_s_orders_can_be_run(judged, name):
    code, said = judged(to_csv(torch_order(name, 4, 2, 8)), "--stages", "4", "--micro", "8")
    assert code == 0, said
    assert "4 stages on 2 ranks" in said


def test_what_an_order_costs(judged):
    code, said = judged(SENT)
    assert (code, "forwards miss 0 updates" in said) == (0, True)
    assert "idle for 33% of a batch" in said
    assert "hold up to 2, 1 of 2 micro-batches" in said


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(judged, name):
    text, words = FAULTS[name]
    code, said = judged(text, *(["--stages", "2"] if "nobody" in name else []))
    assert code == 1
    assert re.search(words, said), said

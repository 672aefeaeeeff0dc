"""Every method and executor ends in the numbers that it ended in before: see `tests.golden`."""

import json

import pytest

import alkit
from tests.golden import CASES, FILE, agree

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_of_before(name):
    found = CASES[name]()
    assert agree(found, GOLDEN[name]), (name, found)


def test_executors_agree_with_each_other():
    for name, one in GOLDEN.items():
        for other in (name.replace("threads", "single"), name.removesuffix(" threads")):
            if other in GOLDEN:
                assert one["losses"] == pytest.approx(GOLDEN[other]["losses"], rel=1e-9), name


def test_every_method_has_a_case():
    assert set(CASES) == set(GOLDEN)
    named = [[word for word in name.split() if word in alkit.METHODS][-1] for name in GOLDEN]
    assert set(named) == set(alkit.METHODS)

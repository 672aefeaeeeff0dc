"""Every method and executor ends in the numbers that it ended in before: see `tests.golden`."""

import json

import pytest

from tests.golden import CASES, FILE, all_ranks

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


def _check(name, found):
    for kind, expected in GOLDEN[name].items():
        assert found[kind] == pytest.approx(expected, rel=1e-6, abs=1e-9), (name, kind)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_of_before(name):
    _check(name, CASES[name]())


def test_ranks_too():
    found = all_ranks()
    assert set(found) | set(CASES) == set(GOLDEN)
    for name, one in found.items():
        _check(name, one)


def test_executors_agree_with_each_other():
    """A run of another key of randomness could be as good; it must not pass as the same."""
    for name, one in GOLDEN.items():
        first = name.replace("threads", "single").replace("ranks", "single")
        for other in (first, name.removesuffix(" ranks"), name.removesuffix(" threads")):
            if other in GOLDEN:
                assert one["losses"] == pytest.approx(GOLDEN[other]["losses"], rel=1e-9), name

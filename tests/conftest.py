"""Shared by all tests: seeds, threads, and which ones come first."""

import logging
import signal

import pytest
import torch

# Whoever starts the tests in the background may have them ignore SIGINT, and the processes that
# they start would inherit that; interrupts are among what is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


# half a minute and more, and one process each: at the end the others would wait for them
FIRST = ("test_sim.py", "test_tasks.py", "test_batch.py", "test_restarts.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in FIRST)


@pytest.fixture(autouse=True)
def _fixed_seed_threads_and_log():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    level = logging.getLogger("alkit").level
    yield
    torch.set_num_threads(before)
    logging.getLogger("alkit").setLevel(level)  # the command sets it for its process

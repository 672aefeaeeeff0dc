"""Shared by all tests: seeds, the versions in the header, and small models."""

import signal

import pytest
import torch

# Whoever starts the tests in the background may have them ignore SIGINT, and the processes that
# they start would inherit that; interrupts are among what is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, {torch.get_num_threads()} operator threads"


@pytest.fixture(autouse=True)
def _fixed_seed_and_threads():
    torch.manual_seed(0)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""How nbval runs the notebooks: patiently, in warm kernels, and a cell that warns fails."""

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import pytest
from jupyter_client.provisioning import local_provisioner

import kernels

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
BAR = re.compile(r"\d+%\||\d+(?:\.\d+)?\w* \[\d+:\d+")  # tqdm's, with and without a known end


def pytest_configure(config: pytest.Config) -> None:
    if kernels.can_fork():
        patch = pytest.MonkeyPatch()
        patch.setattr(local_provisioner, "launch_kernel", kernels.Kernel)
        config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # nbval waits 5 s for a cell's last output, too short on a busy machine
    for item in items:
        if type(item).__name__ == "IPyNbCell":
            item.output_timeout = 60


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Generator[None, Any, Any]:
    done = yield
    if said := warned(getattr(item, "test_outputs", ())):
        pytest.fail(f"{item.nodeid} writes to stderr:\n{said}\n\n{item.cell.source}", pytrace=False)
    return done


def warned(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Return what a cell wrote to stderr but for progress bars: warnings, a log."""
    streams = (each["text"] for each in outputs if each.get("name") == "stderr")
    lines = (line for text in streams for line in re.split(r"[\r\n]+", COLOURS.sub("", text)))
    return "\n".join(line for line in lines if line.strip() and not BAR.search(line))

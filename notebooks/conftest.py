"""How nbval runs the notebooks."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # nbval waits 5 s for a cell's last output, too short on a busy machine
    for item in items:
        if type(item).__name__ == "IPyNbCell":
            item.output_timeout = 60

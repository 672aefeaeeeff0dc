"""The settings that most tests begin with."""

import pytest

from tests.unit.elastic.helpers import SETTINGS


@pytest.fixture
def settings():
    return SETTINGS

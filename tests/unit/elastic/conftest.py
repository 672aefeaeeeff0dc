"""The settings that most tests begin with."""

import pytest

from alkit.elastic import Settings
from tests.unit.elastic.helpers import SETTINGS


@pytest.fixture
def settings() -> Settings:
    return SETTINGS

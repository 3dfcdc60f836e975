"""What tests of attacks share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.hostile.trial import Attackers


@pytest.fixture(scope="session")
def attackers() -> Iterator[Attackers]:
    with closing(Attackers()) as one:
        yield one

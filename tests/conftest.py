"""What every test gets: Hypothesis without deadlines (two workers share a core) and without an example database, and a short heap."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("mqd", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqd")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and all that they import stay to the end: no collection of garbage need walk them, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()

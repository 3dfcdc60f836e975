"""Settings of every test: Hypothesis without deadlines (two workers share a core) and without an
example database, and a small heap.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

GC_THRESHOLD = 50_000
"""New objects between two collections, as in the simulation (mqd/testing/jobs.py)."""
settings.register_profile(
    "mqd", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("mqd")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests and their imports stay until the end: the garbage collector need not visit
    them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _freeze()
        gc.set_threshold(GC_THRESHOLD)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def thaws_the_heap() -> Iterator[None]:
    """For a test that unfreezes all objects, as a node does that owns its process. Without this,
    later collections visit the objects of all collected tests: 0.3 s each.
    """
    yield
    _freeze()


class _Bugs(logging.Handler):
    """Stores the server's log records of unexpected exceptions."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg.startswith("bug in a handler"):
            self.found.append(record.getMessage())


@pytest.fixture(autouse=True)
def no_bugs_in_handlers(request: pytest.FixtureRequest) -> Iterator[None]:
    """A bug closes one connection in production; in a test it is a failure, unless the test is
    marked `plants_a_bug`.
    """
    bugs = _Bugs()
    logger = logging.getLogger("mqd.server.dispatch")
    logger.addHandler(bugs)
    try:
        yield
    finally:
        logger.removeHandler(bugs)
    if request.node.get_closest_marker("plants_a_bug") is None:
        assert not bugs.found, bugs.found

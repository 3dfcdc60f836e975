"""Fixtures of the tests of replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replica.replicas import Replicas


@pytest.fixture
async def replicas(tmp_path: Path) -> Replicas:
    made = Replicas(tmp_path)
    await made.service.start()
    return made

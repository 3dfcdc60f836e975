"""The transcripts beside this file are what the cores do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.golden.classic_driver import ClassicDriver
from tests.golden.consumer_driver import ConsumerDriver
from tests.golden.datadriven import compare, run
from tests.golden.elections_driver import ElectionsDriver
from tests.golden.quorum_driver import QuorumDriver
from tests.golden.replica_driver import ReplicaDriver
from tests.golden.transactions_driver import CoordinatorDriver, PartitionDriver
from tests.golden.truncation_driver import TruncationDriver

FOLDER = Path(__file__).parent
DRIVERS: dict[str, Callable[[Path], Any]] = {
    "classic": ClassicDriver,
    "consumer": ConsumerDriver,
    "elections": ElectionsDriver,
    "producers": PartitionDriver,
    "quorum": QuorumDriver,
    "replica": ReplicaDriver,
    "stable_offset": PartitionDriver,
    "transactions": CoordinatorDriver,
    "truncation": TruncationDriver,
}
TRANSCRIPTS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*.txt"))


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    driver = DRIVERS[path.parent.name](tmp_path)
    if request.config.getoption("--rewrite", default=False):
        text = run(path, driver)
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
        return
    difference = compare(path, driver)
    if difference is not None:
        pytest.fail(difference, pytrace=False)

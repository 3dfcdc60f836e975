"""Steps of the event loop in lookups by key that match every batch, or every record.

`-s` prints them. Times are CPU time of the event loop; a step above the bound has three tries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from mqd.protocol.batch_builder import build_batch
from mqd.protocol.compression import Codec
from tests.hostile.machine import on_reference_machine
from tests.hostile.steps import Steps
from tests.log.support import NOW
from tests.server.rig import Client, rig

pytestmark = [pytest.mark.slow]
SECONDS_MAX = 0.05
TRIES = 3
RECORDS = 40_000
CASES: dict[str, dict[str, Any]] = {
    "a key that all batches have": {"key": b"a"},
    "the empty key, which is everywhere": {"key": b""},
    "the last record of a key": {"key": b"k", "newest_first": True, "max_records": 1},
    "all records of a key": {"key": b"k", "max_records": 1 << 30, "max_bytes": 1 << 30},
    "a long key": {"key": bytes(1 << 20)},
}


async def longest(client: Client, body: Any) -> tuple[float, Any]:
    """The longest step, in seconds on the reference machine, and the response."""
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    steps.begin()
    client.post("find_records", 0, body)
    with trio.fail_after(60):
        while not (responses := client.responses()):
            await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(steps)
    return on_reference_machine(steps.longest, SECONDS_MAX), responses[0]


@pytest.mark.parametrize("codec", (Codec.NONE, Codec.ZSTD))
async def test_lookups_that_match_much(tmp_path: Path, codec: Codec) -> None:
    failures = []
    async with rig(tmp_path) as node:
        node.create("t")
        client = await node.connect()
        for _ in range(4):
            rows = [(b"k", b"\2a\0")] * RECORDS
            await client.produce("t", build_batch(rows, timestamp=NOW, codec=codec))
        for name, change in CASES.items():
            body = {"topic": "t", "partition_index": 0, "offset": -1, **change}
            body.setdefault("newest_first", False)
            if not body["newest_first"]:
                body["offset"] = 0
            tried = []
            for _ in range(TRIES):
                seconds, response = await longest(client, body)
                assert not response.error_code
                tried.append(seconds)
                if seconds < SECONDS_MAX:
                    break
            print(f"{name}, {codec.name.lower()}: {1000 * min(tried):.1f} ms")
            if min(tried) >= SECONDS_MAX:
                failures.append((name, tried))
    assert not failures

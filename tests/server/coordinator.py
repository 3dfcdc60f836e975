"""A transaction coordinator whose responses the test sets."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from mqd.coordinator.partitioning import partition_for
from mqd.errors import ErrorCode
from tests.server.rig import ME, OTHER, Rig

STATE = "__transaction_state"


class ScriptedCoordinator:
    """Replaces the coordinator of a rig.

    `codes` has the error code of each (topic, partition): NONE unless another is set.
    """

    def __init__(self, node: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.codes: dict[tuple[str, int], ErrorCode] = {}
        self.requests: list[dict[str, Any]] = []
        self.marked: list[tuple[Any, ...]] = []
        self.fails: Exception | None = None
        self.error = ErrorCode.NONE
        self.may_respond = trio.Event()
        """Responses wait for it."""
        self.may_respond.set()
        node.create(STATE, 2, replicas=(ME, OTHER))
        node.node.transactions = SimpleNamespace(partition_of=lambda key: partition_for(key, 2))
        node.node.groups = SimpleNamespace(
            partition_of=lambda key: 0, write_marker=self.write_marker
        )
        node.node.forward = self.forward
        self.forwarded: list[tuple[int, str, int]] = []
        monkeypatch.setattr("mqd.server.verification.add_partitions", self.respond)

    async def forward(
        self, node_id: int, api: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        assert node_id != ME
        self.forwarded.append((node_id, api, version))
        return await self.respond(None, request)

    async def respond(self, node: Any, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.requests += request["transactions"]
        await self.may_respond.wait()
        if self.fails is not None:
            raise self.fails
        results = [
            {
                "transactional_id": transaction["transactional_id"],
                "topic_results": [
                    {
                        "name": topic["name"],
                        "results_by_partition": [
                            {
                                "partition_index": index,
                                "partition_error_code": self.codes.get(
                                    (topic["name"], index), ErrorCode.NONE
                                ),
                            }
                            for index in topic["partitions"]
                        ],
                    }
                    for topic in transaction["topics"]
                ],
            }
            for transaction in request["transactions"]
        ]
        return {
            "error_code": self.error,
            "results_by_transaction": results if not self.error else [],
        }

    async def write_marker(self, index: int, producer: Any, *how: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.marked.append((index, tuple(producer), *how))
        if self.fails is not None:
            raise self.fails

"""Requests about classic groups on their way to the coordinators: what is copied, what old
versions are told, several groups at once.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mqd.coordinator.shard import Call
from mqd.errors import ErrorCode, MqError
from mqd.protocol.apis import by_name
from mqd.protocol.request_header import RequestHeader
from mqd.server.context import CLIENT, Context
from mqd.server.handlers import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)


class Coordinators:
    """A CoordinatorService that answers as it is told, and notes what it was asked."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.calls: list[tuple[Any, Call]] = []

    def partition_of(self, key: str) -> int:
        return len(key)

    async def call(self, key: str, op: Call, decided: Callable[[], None] = lambda: None) -> Any:
        try:
            return await self.call_shard(key, op)
        finally:
            decided()

    async def call_shard(self, index: Any, op: Call) -> Any:
        self.calls.append((index, op._replace(request=deepcopy(op.request))))
        answer = self._answer(index, op) if callable(self._answer) else self._answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def call_everywhere(self, op: Call) -> list[Any]:
        return [await self.call_shard(index, op) for index in (1, 2)]


def context(groups: Coordinators, api: str, version: int) -> Context:
    header = RequestHeader(by_name(api).key, version, 7, "me", 0)
    return Context(cast(Any, SimpleNamespace(groups=groups)), header, CLIENT, "10.0.0.1:55", 0.0)


def received(api: str, version: int, **request: Any) -> tuple[bytearray, Any]:
    """A request as it comes: its bytes fields are slices of the buffer."""
    buffer = bytearray(by_name(api).encode_request(version, request))
    return buffer, by_name(api).decode_request(version, buffer)


async def test_what_members_say_is_copied_before_anybody_waits() -> None:
    groups = Coordinators({"error_code": ErrorCode.NONE})
    buffer, request = received(
        "join_group", 9, group_id="g", protocols=[{"name": "range", "metadata": b"mine"}]
    )
    work = join_group.handle(context(groups, "join_group", 9), request)
    buffer[:] = bytes(len(buffer))
    await work
    buffer, request = received(
        "sync_group", 5, group_id="g", assignments=[{"member_id": "m", "assignment": b"yours"}]
    )
    work = sync_group.handle(context(groups, "sync_group", 5), request)
    buffer[:] = bytes(len(buffer))
    await work
    joining, syncing = (call.request for _, call in groups.calls)
    assert joining.protocols[0].metadata == b"mine"
    assert syncing.assignments[0].assignment == b"yours"
    assert [
        (key, call.api, call.version, call.client_id, call.client_host)
        for key, call in groups.calls
    ] == [
        ("g", "JoinGroup", 9, "me", "/10.0.0.1"),
        ("g", "SyncGroup", 5, "me", "/10.0.0.1"),
    ]


@pytest.mark.parametrize(
    ("handler", "api", "version", "rows"),
    [
        (join_group, "join_group", 9, {"protocols": [{"name": "range", "metadata": b"mine"}]}),
        (
            sync_group,
            "sync_group",
            5,
            {"assignments": [{"member_id": "m", "assignment": b"yours"}]},
        ),
        (sync_group, "sync_group", 5, {"assignments": [{"member_id": "m"}] * 500}),
    ],
)
async def test_nothing_large_waits_with_a_request(
    handler: Any, api: str, version: int, rows: dict[str, Any]
) -> None:
    groups = Coordinators({"error_code": ErrorCode.NONE})
    _, request = received(api, version, group_id="g", **rows)
    told: list[None] = []
    asked = replace(context(groups, api, version), waits=lambda: told.append(None))
    await handler.handle(asked, request)
    assert told == [None]
    (name,) = rows
    assert len(groups.calls[0][1].request[name]) == len(rows[name]) and not request[name]


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(
    "answer",
    [
        {"error_code": ErrorCode.MEMBER_ID_REQUIRED, "protocol_name": None},
        MqError(ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_join_without_a_protocol_is_told_in_every_version(
    version: int, answer: Any
) -> None:
    _, request = received("join_group", version, group_id="g")
    told = await join_group.handle(context(Coordinators(answer), "join_group", version), request)
    api = by_name("join_group")
    decoded = api.decode_response(version, api.encode_response(version, told))
    assert decoded.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.NOT_COORDINATOR)
    assert decoded.protocol_name == (None if version >= 7 else "")


def test_while_the_coordinator_loads_a_heartbeat_is_taken_for_good() -> None:
    assert heartbeat.failed(None, MqError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)) == {
        "error_code": ErrorCode.NONE
    }
    assert heartbeat.failed(None, MqError(ErrorCode.NOT_COORDINATOR)) == {
        "error_code": ErrorCode.NOT_COORDINATOR
    }
    for handler in (sync_group, leave_group, list_groups, join_group):
        refused = handler.failed(None, MqError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        assert refused == {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}


async def test_groups_of_every_shard_are_listed() -> None:
    groups = Coordinators(lambda index, _: {"groups": [{"group_id": f"of {index}"}]})
    answer = await list_groups.handle(
        context(groups, "list_groups", 5), received("list_groups", 5)[1]
    )
    assert answer == {"groups": [{"group_id": "of 1"}, {"group_id": "of 2"}]}


async def test_each_shard_describes_its_own_groups_in_the_order_that_was_asked() -> None:
    def answer(index: int, call: Call) -> Any:
        if index == 1:
            return MqError(ErrorCode.NOT_COORDINATOR)
        return {
            "groups": [
                {"group_id": name, "error_code": ErrorCode.NONE} for name in call.request.groups
            ]
        }

    groups = Coordinators(answer)
    _, request = received(
        "describe_groups", 5, groups=["aa", "b", "cc", "aa"], include_authorized_operations=True
    )
    told = await describe_groups.handle(context(groups, "describe_groups", 5), request)
    assert told["groups"] == [
        {"group_id": "aa", "error_code": ErrorCode.NONE, "authorized_operations": 3400},
        {"group_id": "b", "error_code": ErrorCode.NOT_COORDINATOR},
        {"group_id": "cc", "error_code": ErrorCode.NONE, "authorized_operations": 3400},
    ]
    assert [(index, call.request.groups) for index, call in groups.calls] == [
        (2, ["aa", "cc"]),
        (1, ["b"]),
    ]
    by_name("describe_groups").encode_response(5, told)


async def test_for_whom_a_rebalance_waits_is_told_to_those_who_ask() -> None:
    """Stock clients get Kafka's fields and no other: not every one steps over tags that it
    does not know.
    """
    members = [{"member_id": "one", "awaited": True}, {"member_id": "two"}]
    groups = Coordinators(
        {
            "groups": [
                {
                    "group_id": "g",
                    "error_code": ErrorCode.NONE,
                    "members": members,
                    "state_since_ms": 5,
                }
            ]
        }
    )
    api = by_name("describe_groups")
    for version, wanted in ((4, True), (5, False), (5, True), (6, True)):
        _, request = received("describe_groups", version, groups=["g"], awaited_wanted=wanted)
        answer = await describe_groups.handle(context(groups, "describe_groups", version), request)
        (row,) = api.decode_response(version, api.encode_response(version, answer)).groups
        told = wanted and version >= 5
        assert [each.awaited for each in row.members] == [told, False] and row.state_since_ms == (
            5 if told else -1
        )


async def test_many_groups_are_deleted_some_at_a_time() -> None:
    def answer(index: int, call: Call) -> Any:
        return {
            "results": [
                {"group_id": name, "error_code": ErrorCode.NONE}
                for name in call.request.groups_names
            ]
        }

    groups = Coordinators(answer)
    names = [f"{number:04}" for number in range(250)]
    told = await delete_groups.handle(
        context(groups, "delete_groups", 2), received("delete_groups", 2, groups_names=names)[1]
    )
    assert [row["group_id"] for row in told["results"]] == names
    assert [len(call.request.groups_names) for _, call in groups.calls] == [100, 100, 50]


async def test_a_group_that_is_not_deleted_at_once_is_asked_for_again() -> None:
    passes = {"a": 3, "b": 1, "c": 2}

    def answer(index: int, call: Call) -> Any:
        rows = []
        for name in call.request.groups_names:
            passes[name] -= 1
            left = {"unfinished": True} if passes[name] else {}
            rows.append(
                {
                    "group_id": name,
                    "error_code": ErrorCode.NON_EMPTY_GROUP
                    if name == "c" and not left
                    else ErrorCode.NONE,
                }
                | left
            )
        return {"results": rows}

    groups = Coordinators(answer)
    _, request = received("delete_groups", 2, groups_names=["a", "b", "c"])
    told = await delete_groups.handle(context(groups, "delete_groups", 2), request)
    codes = {"a": ErrorCode.NONE, "b": ErrorCode.NONE, "c": ErrorCode.NON_EMPTY_GROUP}
    assert told == {
        "results": [{"group_id": name, "error_code": code} for name, code in codes.items()]
    }
    assert [call.request.groups_names for _, call in groups.calls] == [
        ["a", "b", "c"],
        ["a", "c"],
        ["a"],
    ]


def test_where_there_are_no_groups_at_all_each_is_told_so() -> None:
    _, request = received("delete_groups", 2, groups_names=["a", "b", "a"])
    error = MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [row["group_id"] for row in delete_groups.failed(request, error)["results"]] == [
        "a",
        "b",
    ]
    _, request = received("describe_groups", 6, groups=["a"])
    answer = describe_groups.failed(request, error)
    assert answer == {
        "groups": [{"group_id": "a", "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    }
    by_name("describe_groups").encode_response(6, answer)


async def test_a_consumer_group_that_is_named_again_and_again_is_described_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have much to tell, and a request has room for many names."""
    groups = Coordinators(
        lambda key, call: {"groups": [{"group_id": key, "error_code": ErrorCode.NONE}]}
    )
    _, request = received("consumer_group_describe", 1, group_ids=["g", "", "h", "g", "", "g"])
    asked = context(groups, "consumer_group_describe", 1)
    monkeypatch.setattr(consumer_group_describe, "require_protocol", lambda node: None)
    answer = await consumer_group_describe.handle(asked, request)
    assert [row["group_id"] for row in answer["groups"]] == ["g", "", "h"] and len(
        groups.calls
    ) == 2

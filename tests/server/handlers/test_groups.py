"""Requests for classic groups on their way to the coordinators: what is copied, what old versions
get, several groups at once.
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
from mqd.protocol.slices import all_slices
from mqd.security.authorizer import Authorizer
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
    """A CoordinatorService with scripted responses. It records its calls."""

    def __init__(self, response: Any) -> None:
        self._answer = response
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
        response = self._answer(index, op) if callable(self._answer) else self._answer
        if isinstance(response, Exception):
            raise response
        return response

    async def call_everywhere(self, op: Call) -> list[Any]:
        return [await self.call_shard(index, op) for index in (1, 2)]


def context(groups: Coordinators, api: str, version: int) -> Context:
    header = RequestHeader(by_name(api).key, version, 7, "me", 0)
    return Context(
        cast(Any, SimpleNamespace(groups=groups, authorizer=Authorizer(enforces=False))),
        header,
        CLIENT,
        "10.0.0.1:55",
        0.0,
    )


def received(api: str, version: int, **request: Any) -> tuple[bytearray, Any]:
    """A request as received: its bytes fields are slices of the buffer."""
    buffer = bytearray(by_name(api).encode_request(version, request))
    return buffer, by_name(api).decode_request(version, buffer)


async def test_member_metadata_is_copied_before_the_request_waits() -> None:
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
async def test_a_waiting_request_holds_nothing_large(
    handler: Any, api: str, version: int, rows: dict[str, Any]
) -> None:
    groups = Coordinators({"error_code": ErrorCode.NONE})
    _, request = received(api, version, group_id="g", **rows)
    returned: list[None] = []
    requested = replace(context(groups, api, version), waits=lambda: returned.append(None))
    await handler.handle(requested, request)
    assert returned == [None]
    (name,) = rows
    assert len(groups.calls[0][1].request[name]) == len(rows[name]) and not request[name]


@pytest.mark.parametrize("version", range(10))
@pytest.mark.parametrize(
    "response",
    [
        {"error_code": ErrorCode.MEMBER_ID_REQUIRED, "protocol_name": None},
        MqError(ErrorCode.NOT_COORDINATOR),
    ],
)
async def test_a_join_without_a_protocol_gets_an_error_in_every_version(
    version: int, response: Any
) -> None:
    _, request = received("join_group", version, group_id="g")
    returned = await join_group.handle(
        context(Coordinators(response), "join_group", version), request
    )
    api = by_name("join_group")
    decoded = api.decode_response(version, api.encode_response(version, returned))
    assert decoded.error_code in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.NOT_COORDINATOR)
    assert decoded.protocol_name == (None if version >= 7 else "")


def test_a_heartbeat_succeeds_while_the_coordinator_loads() -> None:
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
    response = await list_groups.handle(
        context(groups, "list_groups", 5), received("list_groups", 5)[1]
    )
    assert response == {"groups": [{"group_id": "of 1"}, {"group_id": "of 2"}]}


async def test_each_shard_describes_its_own_groups_in_the_order_of_the_request() -> None:
    def response(index: int, call: Call) -> Any:
        if index == 1:
            return MqError(ErrorCode.NOT_COORDINATOR)
        return {
            "groups": [
                {"group_id": name, "error_code": ErrorCode.NONE} for name in call.request.groups
            ]
        }

    groups = Coordinators(response)
    _, request = received(
        "describe_groups", 5, groups=["aa", "b", "cc", "aa"], include_authorized_operations=True
    )
    returned = await describe_groups.handle(context(groups, "describe_groups", 5), request)
    assert returned["groups"] == [
        {"group_id": "aa", "error_code": ErrorCode.NONE, "authorized_operations": 3400},
        {"group_id": "b", "error_code": ErrorCode.NOT_COORDINATOR},
        {"group_id": "cc", "error_code": ErrorCode.NONE, "authorized_operations": 3400},
    ]
    assert [(index, call.request.groups) for index, call in groups.calls] == [
        (2, ["aa", "cc"]),
        (1, ["b"]),
    ]
    by_name("describe_groups").encode_response(5, returned)


async def test_awaited_members_of_a_rebalance_are_described_on_request() -> None:
    """Stock clients get only Kafka's fields: some of them fail on unknown tagged fields."""
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
        response = await describe_groups.handle(
            context(groups, "describe_groups", version), request
        )
        (row,) = api.decode_response(version, api.encode_response(version, response)).groups
        returned = wanted and version >= 5
        assert [each.awaited for each in row.members] == [
            returned,
            False,
        ] and row.state_since_ms == (5 if returned else -1)


async def test_many_groups_are_deleted_in_portions() -> None:
    def response(index: int, call: Call) -> Any:
        return {
            "results": [
                {"group_id": name, "error_code": ErrorCode.NONE}
                for name in call.request.groups_names
            ]
        }

    groups = Coordinators(response)
    names = [f"{number:04}" for number in range(250)]
    returned = await delete_groups.handle(
        context(groups, "delete_groups", 2), received("delete_groups", 2, groups_names=names)[1]
    )
    assert [row["group_id"] for row in returned["results"]] == names
    assert [len(call.request.groups_names) for _, call in groups.calls] == [100, 100, 50]


async def test_the_deletion_of_a_large_group_is_repeated_until_complete() -> None:
    passes = {"a": 3, "b": 1, "c": 2}

    def response(index: int, call: Call) -> Any:
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

    groups = Coordinators(response)
    _, request = received("delete_groups", 2, groups_names=["a", "b", "c"])
    returned = await delete_groups.handle(context(groups, "delete_groups", 2), request)
    codes = {"a": ErrorCode.NONE, "b": ErrorCode.NONE, "c": ErrorCode.NON_EMPTY_GROUP}
    assert returned == {
        "results": [{"group_id": name, "error_code": code} for name, code in codes.items()]
    }
    assert [call.request.groups_names for _, call in groups.calls] == [
        ["a", "b", "c"],
        ["a", "c"],
        ["a"],
    ]


def test_without_a_groups_topic_each_group_gets_an_error() -> None:
    _, request = received("delete_groups", 2, groups_names=["a", "b", "a"])
    error = MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    deleted = all_slices(delete_groups.failed(request, error))
    assert [row["group_id"] for row in deleted["results"]] == ["a", "b"]
    _, request = received("describe_groups", 6, groups=["a"])
    response = all_slices(describe_groups.failed(request, error))
    assert response == {
        "groups": [{"group_id": "a", "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE}]
    }
    by_name("describe_groups").encode_response(6, response)


@pytest.mark.parametrize(
    ("handler", "name", "field"),
    [
        (delete_groups, "delete_groups", "groups_names"),
        (describe_groups, "describe_groups", "groups"),
        (consumer_group_describe, "consumer_group_describe", "group_ids"),
    ],
)
def test_a_refusal_of_many_groups_is_built_in_slices(handler: Any, name: str, field: str) -> None:
    _, request = received(name, 1, **{field: [f"g{number}" for number in range(1000)]})
    work = handler.failed(request, MqError(ErrorCode.COORDINATOR_NOT_AVAILABLE))
    assert list(work) == [1] * 1000


async def test_a_consumer_group_named_repeatedly_is_described_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group may have many members, and a request has room for many names."""
    groups = Coordinators(
        lambda key, call: {"groups": [{"group_id": key, "error_code": ErrorCode.NONE}]}
    )
    _, request = received("consumer_group_describe", 1, group_ids=["g", "", "h", "g", "", "g"])
    requested = context(groups, "consumer_group_describe", 1)
    monkeypatch.setattr(consumer_group_describe, "require_protocol", lambda node: None)
    response = await consumer_group_describe.handle(requested, request)
    assert [row["group_id"] for row in response["groups"]] == ["g", "", "h"] and len(
        groups.calls
    ) == 2

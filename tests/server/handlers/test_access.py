"""ACLs, SCRAM credentials and client quotas: what handlers add to the decisions of the controller.

tests/conformance/test_wire_security.py compares all rows with Apache Kafka's.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio

from mqd.errors import ErrorCode
from mqd.limits import ACL_FILTERS_MAX, ACLS_CREATED_MAX, QUOTA_ENTITIES_MAX, SCRAM_USERS_MAX
from mqd.protocol.apis import by_name
from mqd.protocol.request_header import RequestHeader
from mqd.security.authorizer import Authorizer
from mqd.security.scram import derive_keys
from mqd.security.scram_credentials import ScramMechanism
from mqd.server.context import PEER, Context
from mqd.server.handlers import alter_user_scram_credentials
from tests.server.handlers.node import running_node

ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
NULLS = dict.fromkeys(("resource_name_filter", "principal_filter", "host_filter"))
ANY: dict[str, Any] = FILTER | NULLS
SALTED = bytes.fromhex("c4a49510323ab4f952cac1fa99441939e78ea74d6be81ddf7096e87513dc615d")
"""The password "pencil" of RFC 7677."""
SALT = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
USER = {
    "name": "alice",
    "mechanism": 1,
    "iterations": 4096,
    "salt": SALT,
    "salted_password": SALTED,
}
QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "alice"}],
    "ops": [{"key": "producer_byte_rate", "value": 1.0}],
}
CHANGES: list[tuple[str, int, str, dict[str, Any], int]] = [
    ("create_acls", 3, "creations", ACL, ACLS_CREATED_MAX),
    ("delete_acls", 3, "filters", ANY, ACL_FILTERS_MAX),
    ("alter_user_scram_credentials", 0, "upsertions", USER, SCRAM_USERS_MAX),
    ("alter_client_quotas", 1, "entries", QUOTA, QUOTA_ENTITIES_MAX),
]


def codes(response: Any) -> set[int]:
    (rows,) = (each for each in response.values() if isinstance(each, list))
    assert rows
    return {row.error_code for row in rows}


async def test_acls_without_an_authorizer() -> None:
    async with running_node() as node:
        refused = "No Authorizer is configured."
        described = await node.request("describe_acls", 3, **ANY)
        assert (described.error_code, described.error_message) == (
            ErrorCode.SECURITY_DISABLED,
            refused,
        )
        for api, field, row in (
            ("create_acls", "creations", ACL),
            ("delete_acls", "filters", ANY),
        ):
            body: dict[str, Any] = {field: [row, row]}
            response = await node.request(api, 3, **body)
            assert codes(response) == {ErrorCode.SECURITY_DISABLED}


@pytest.mark.parametrize(("api", "version", "field", "row", "most"), CHANGES)
async def test_changes_are_bounded_and_need_metadata_version_3(
    api: str, version: int, field: str, row: dict[str, Any], most: int
) -> None:
    async with running_node() as node:
        node.authorizer = Authorizer(enforces=True)
        one: dict[str, Any] = {field: [row]}
        too_many: dict[str, Any] = {field: [row] * (most + 1)}
        many = await node.request(api, version, listener=PEER, **too_many)
        assert codes(many) == {ErrorCode.INVALID_REQUEST}
        node.image.features["mqd.metadata.version"] = 2
        early = await node.request(api, version, listener=PEER, **one)
        assert codes(early) == {ErrorCode.UNSUPPORTED_VERSION}
        node.image.features["mqd.metadata.version"] = 3
        done = await node.request(api, version, listener=PEER, **one)
        assert codes(done) == {ErrorCode.NONE}


async def test_secrets_are_copied_out_of_the_receive_buffer() -> None:
    """The arena is used again before the controller decides."""
    api = by_name("alter_user_scram_credentials")
    buffer = bytearray(api.encode_request(0, {"upsertions": [USER]}))
    async with running_node() as node:
        as_node: Any = node
        header = RequestHeader(api.key, 0, 7, "test", 0)
        context = Context(as_node, header, PEER, "test", trio.current_time())
        work = alter_user_scram_credentials.handle(context, api.decode_request(0, buffer))
        buffer[:] = bytes(len(buffer))
        await work
        stored = node.image.scram_credentials["alice", ScramMechanism.SHA_256]
        keys = derive_keys(ScramMechanism.SHA_256, "pencil", SALT, 4096)
        assert (stored.salt, stored.stored_key) == (SALT, keys.stored_key)

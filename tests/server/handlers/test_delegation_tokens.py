"""Requests for delegation tokens (KIP-48) are refused, with codes and timestamps of Apache Kafka
4.3.1 without `delegation.token.secret.key`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from mqd.errors import MqError
from mqd.protocol.apis import by_name
from mqd.protocol.request_header import RequestHeader
from mqd.security.audit import Audit
from mqd.security.authorizer import Authorizer
from mqd.security.client_listeners import ClientListener, SecurityProtocol
from mqd.security.principal import ANONYMOUS, Principal
from mqd.server.context import CLIENT, Context
from tests.server.handlers.node import FakeNode

ALICE = Principal("User", "alice")
DISABLED, NOT_ALLOWED, DENIED, INVALID_TYPE = 61, 64, 65, 67
CREATE: dict[str, Any] = {
    "owner_principal_type": None,
    "owner_principal_name": None,
    "renewers": [],
    "max_lifetime_ms": -1,
}
OF_BOB = {"owner_principal_type": "User", "owner_principal_name": "bob"}
GROUP = {"renewers": [{"principal_type": "Group", "principal_name": "x"}]}
BODIES: dict[str, dict[str, Any]] = {
    "create_delegation_token": CREATE,
    "renew_delegation_token": {"hmac": b"x", "renew_period_ms": -1},
    "expire_delegation_token": {"hmac": b"x", "expiry_time_period_ms": -1},
    "describe_delegation_token": {"owners": None},
}


def ask(
    name: str,
    version: int,
    body: dict[str, Any],
    *,
    protocol: SecurityProtocol = SecurityProtocol.SASL_PLAINTEXT,
    principal: Principal = ALICE,
    enforces: bool = False,
) -> Any:
    api = by_name(name)
    assert api is not None
    handler = import_module(f"mqd.server.handlers.{name}")
    node: Any = FakeNode(authorizer=Authorizer(enforces=enforces), audit=Audit())
    context = Context(
        node=node,
        header=RequestHeader(api.key, version, 7, "test", 0),
        listener=CLIENT,
        peer="127.0.0.1",
        now=0.0,
        principal=principal,
        client_listener=ClientListener("L", protocol, "", 9092, "", 9092),
    )
    request = api.decode_request(version, api.encode_request(version, body))
    try:
        response = handler.handle(context, request)
    except MqError as error:
        response = handler.failed(request, error)
    return api.decode_response(version, api.encode_response(version, response))


VERSIONS = [
    (name, version)
    for name in BODIES
    for version in range(1, 4 if name.startswith(("create", "describe")) else 3)
]


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_in_every_version(name: str, version: int) -> None:
    for protocol, principal, code, timestamp_ms in (
        (SecurityProtocol.PLAINTEXT, ANONYMOUS, NOT_ALLOWED, -1),
        (SecurityProtocol.SSL, ANONYMOUS, NOT_ALLOWED, -1),
        (SecurityProtocol.SSL, ALICE, DISABLED, 0),
        (SecurityProtocol.SASL_PLAINTEXT, ALICE, DISABLED, 0),
    ):
        found = ask(name, version, BODIES[name], protocol=protocol, principal=principal)
        assert found.error_code == code
        if name != "describe_delegation_token":
            assert found.expiry_timestamp_ms == timestamp_ms
        if name == "create_delegation_token":
            assert (found.principal_type, found.principal_name) == principal
            assert (found.issue_timestamp_ms, found.max_timestamp_ms) == (timestamp_ms,) * 2
            assert (found.token_id, bytes(found.hmac)) == ("", b"")


@pytest.mark.parametrize(
    ("changes", "enforces", "code"),
    [
        (OF_BOB, True, DENIED),
        (OF_BOB, False, DISABLED),
        ({"owner_principal_type": "User", "owner_principal_name": ""}, True, DISABLED),
        (OF_BOB | GROUP, True, DENIED),
        (GROUP, True, INVALID_TYPE),
    ],
)
def test_order_of_errors(changes: dict[str, Any], enforces: bool, code: int) -> None:
    found = ask("create_delegation_token", 3, CREATE | changes, enforces=enforces)
    owner = changes.get("owner_principal_name") or "alice"
    assert (found.error_code, found.principal_name) == (code, owner)
    assert found.token_requester_principal_name == "alice"
    assert found.issue_timestamp_ms == (0 if code == DISABLED else -1)

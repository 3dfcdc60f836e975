"""ACLs, SCRAM credentials and client quotas: every row of a request with its code and message.

A foreign broker must be started with an authorizer and `super.users=User:ANONYMOUS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Broker
from .wire import Wire, until

INVALID_REQUEST, UNSUPPORTED_SASL_MECHANISM, UNSUPPORTED_VERSION = 42, 33, 35
RESOURCE_NOT_FOUND, DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL = 91, 92, 93
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
ALLOW, READ, DESCRIBE_TOKENS = 3, 3, 14
SALT, SALTED = b"s" * 16, b"p" * 32


@pytest.fixture
def wire(guarded: Broker) -> Iterator[Wire]:
    with Wire(guarded.host, guarded.port) as connection:
        yield connection


# -- ACLs


def acl(name: str, **other: Any) -> dict[str, Any]:
    return {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    } | other


def matching(name: str | None, **other: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": name,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    } | other


def create(wire: Wire, *acls: dict[str, Any], version: int = 3) -> list[tuple[int, str]]:
    """Codes and messages."""
    response = wire.ask("CreateAcls", version, creations=list(acls))
    return [(row.error_code, row.error_message) for row in response.results]


def found(wire: Wire, version: int = 3, **filters: Any) -> set[tuple[Any, ...]]:
    response = wire.ask("DescribeAcls", version, **filters)
    assert (response.error_code, response.error_message) == (0, "")
    return {
        (
            row.resource_type,
            row.resource_name,
            row.pattern_type,
            entry.principal,
            entry.host,
            entry.operation,
            entry.permission_type,
        )
        for row in response.resources
        for entry in row.acls
    }


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_created_described_and_deleted(
    wire: Wire, new_name: Callable[[], str], version: int
) -> None:
    name = new_name()
    rows = [
        acl(name),
        acl(name),
        acl(name[:-1], resource_pattern_type=PREFIXED),
        acl(name, resource_type=GROUP, host="10.0.0.1"),
        acl(name, resource_type=USER, operation=DESCRIBE_TOKENS),
    ]
    assert create(wire, *rows, version=version) == [(0, "")] * 5
    literal = (TOPIC, name, LITERAL, "User:alice", "*", READ, ALLOW)
    prefix = (TOPIC, name[:-1], PREFIXED, "User:alice", "*", READ, ALLOW)
    group = (GROUP, name, LITERAL, "User:alice", "10.0.0.1", READ, ALLOW)
    user = (USER, name, LITERAL, "User:alice", "*", DESCRIBE_TOKENS, ALLOW)
    until(lambda: len(found(wire, version, **matching(name))) == 3, "three ACLs")
    cases: list[tuple[set[tuple[Any, ...]], dict[str, Any]]] = [
        ({literal, group, user}, matching(name)),
        ({literal, prefix}, matching(name, pattern_type_filter=MATCH, resource_type_filter=TOPIC)),
        (set(), matching(name, pattern_type_filter=PREFIXED)),
        ({prefix}, matching(name[:-1], pattern_type_filter=PREFIXED)),
        ({group}, matching(name, host_filter="10.0.0.1")),
        (set(), matching(name, principal_filter="User:bob")),
        (set(), matching(name, operation=2)),
        (set(), matching(name, resource_type_filter=99)),
    ]
    for wanted, filters in cases:
        assert found(wire, version, **filters) == wanted, filters
    response = wire.ask(
        "DeleteAcls",
        version,
        filters=[
            matching(name),
            matching(name, principal_filter="User:alice"),
            matching(name, operation=99),
            matching(name, resource_type_filter=99),
            matching(name[:-1], pattern_type_filter=PREFIXED),
        ],
    )
    assert [
        (row.error_code, row.error_message, len(row.matching_acls))
        for row in response.filter_results
    ] == [
        (0, None, 3),
        (0, None, 3),
        (INVALID_REQUEST, "Unknown entryFilter.", 0),
        (INVALID_REQUEST, "Unknown patternFilter.", 0),
        (0, None, 1),
    ]
    (only,) = response.filter_results[4].matching_acls
    assert (only.error_code, only.error_message, only.resource_name) == (0, None, name[:-1])
    until(lambda: not found(wire, version, **matching(name)), "no ACL")


def test_invalid_acls_are_refused_each_on_its_own(wire: Wire, new_name: Callable[[], str]) -> None:
    name = new_name()
    no_colon = "(no colon is present separating the principal type from the principal name)"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        (
            {"resource_type": CLUSTER},
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_pattern_type": 9}, "Invalid patternType UNKNOWN"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission_type": 9}, "Invalid permissionType UNKNOWN"),
        ({"principal": "alice"}, f"Could not parse principal from `alice` {no_colon}"),
        ({"principal": ""}, f"Could not parse principal from `` {no_colon}"),
    ]
    rows = [acl(name, **changes) for changes, _ in cases]
    assert create(wire, *rows, acl(name)) == [
        *((INVALID_REQUEST, message) for _, message in cases),
        (0, ""),
    ]


# -- SCRAM credentials


def upsertion(name: str, **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "mechanism": 1,
        "iterations": 4096,
        "salt": SALT,
        "salted_password": SALTED,
    } | other


def alter_users(
    wire: Wire, upsertions: list[dict[str, Any]], deletions: list[tuple[str, int]] | None = None
) -> list[tuple[str, int, str | None]]:
    response = wire.ask(
        "AlterUserScramCredentials",
        0,
        upsertions=upsertions,
        deletions=[{"name": name, "mechanism": number} for name, number in deletions or ()],
    )
    return sorted((row.user, row.error_code, row.error_message) for row in response.results)


def users(wire: Wire, *names: str) -> dict[str, Any]:
    response = wire.ask(
        "DescribeUserScramCredentials", 0, users=[{"name": name} for name in names] or None
    )
    assert (response.error_code, response.error_message) == (0, "")
    return {
        row.user: [(info.mechanism, info.iterations) for info in row.credential_infos]
        if not row.error_code
        else (row.error_code, row.error_message)
        for row in response.results
    }


def test_users_are_created_described_and_deleted(wire: Wire, new_name: Callable[[], str]) -> None:
    one, two = f"{new_name()}-1", f"{new_name()}-2 ä,="
    missing = (
        RESOURCE_NOT_FOUND,
        f"Attempt to describe a user credential that does not exist: {two}",
    )
    assert alter_users(wire, [upsertion(one)]) == [(one, 0, None)]
    sha_512 = upsertion(one, mechanism=2, iterations=16384, salted_password=b"p" * 64)
    assert alter_users(wire, [sha_512]) == [(one, 0, None)]
    both = [(1, 4096), (2, 16384)]
    until(lambda: users(wire, one) == {one: both}, "two mechanisms")
    assert users(wire)[one] == both
    assert users(wire, one, two, one) == {
        one: (
            DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {one}",
        ),
        two: missing,
    }
    # Apache Kafka loses `two` if the request deletes the last other user of its mechanism.
    assert alter_users(wire, [upsertion(two)], [(one, 2)]) == [(one, 0, None), (two, 0, None)]
    until(lambda: users(wire, two) == {two: [(1, 4096)]}, "the other user")
    assert users(wire, one) == {one: [(1, 4096)]}
    assert alter_users(wire, [], [(one, 1), (two, 1)]) == [(one, 0, None), (two, 0, None)]
    until(lambda: users(wire, two) == {two: missing}, "no credential")


def test_invalid_credentials_are_refused_each_on_its_own(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    unknown = (UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    twice = (
        DUPLICATE_RESOURCE,
        "A user credential cannot be altered twice in the same request",
    )
    none = (RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    cases: list[tuple[list[dict[str, Any]], list[tuple[str, int]], tuple[int, str]]] = [
        ([upsertion("a", iterations=4095)], [], (UNACCEPTABLE_CREDENTIAL, "Too few iterations")),
        ([upsertion("b", iterations=16385)], [], (UNACCEPTABLE_CREDENTIAL, "Too many iterations")),
        ([upsertion("c", mechanism=0)], [], unknown),
        ([upsertion("d", mechanism=9)], [], unknown),
        ([], [("e", 9)], unknown),
        ([upsertion("f"), upsertion("f", mechanism=2)], [], twice),
        ([upsertion("g"), upsertion("g", mechanism=9)], [], twice),
        ([], [("h", 1)], none),
        ([upsertion("i")], [("i", 1)], none),
    ]
    upsertions = [row | {"name": name + row["name"]} for rows, _, _ in cases for row in rows]
    deletions = [(name + user, number) for _, rows, _ in cases for user, number in rows]
    answers = alter_users(wire, [*upsertions, upsertion(name)], deletions)
    assert answers == [
        (name, 0, None),
        *((name + user, *refusal) for user, (_, _, refusal) in zip("abcdefghi", cases)),
    ]
    assert alter_users(wire, [upsertion("")]) == [
        ("", UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    ]
    until(lambda: users(wire, name) == {name: [(1, 4096)]}, "the valid one")


# -- client quotas

Entity = dict[str, str | None]


def entry(entity: Entity, ops: dict[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None}
            for key, value in ops.items()
        ],
    }


def alter_quotas(
    wire: Wire, *entries: dict[str, Any], version: int = 1, validate_only: bool = False
) -> list[tuple[int, str | None]]:
    response = wire.ask(
        "AlterClientQuotas", version, entries=list(entries), validate_only=validate_only
    )
    return [(row.error_code, row.error_message) for row in response.entries]


def quotas(
    wire: Wire, *components: tuple[str, int, str | None], version: int = 1, strict: bool = False
) -> Any:
    """By entity, or the refusal."""
    response = wire.ask(
        "DescribeClientQuotas",
        version,
        components=[
            {"entity_type": kind, "match_type": number, "match": name}
            for kind, number, name in components
        ],
        strict=strict,
    )
    if response.error_code:
        assert response.entries is None
        return response.error_code, response.error_message
    assert response.error_message == ""
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in row.entity)): {
            each.key: each.value for each in row.values
        }
        for row in response.entries
    }


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed(
    wire: Wire, new_name: Callable[[], str], version: int
) -> None:
    user, client = new_name(), new_name()
    of_user, of_both = (("user", user),), (("client-id", client), ("user", user))
    limits: dict[str, float | None] = {"producer_byte_rate": 1e12, "request_percentage": 250.5}
    set_both = [
        entry({"user": user}, limits),
        entry({"client-id": client, "user": user}, {"controller_mutation_rate": 0.5}),
    ]
    assert alter_quotas(wire, *set_both, version=version, validate_only=True) == [(0, None)] * 2
    assert alter_quotas(wire, *set_both, version=version) == [(0, None)] * 2
    component = ("user", 0, user)
    both = {of_user: limits, of_both: {"controller_mutation_rate": 0.5}}
    until(lambda: quotas(wire, component, version=version) == both, "both quotas")
    assert quotas(wire, component, strict=True) == {of_user: limits}
    assert quotas(wire, component, ("client-id", 2, None)) == {of_both: both[of_both]}
    assert quotas(wire, component, ("client-id", 1, None)) == {}
    assert quotas(wire, ("user", 2, None))[of_user] == limits
    remove: dict[str, float | None] = {"producer_byte_rate": None, "consumer_byte_rate": None}
    assert alter_quotas(wire, entry({"user": user}, remove)) == [(0, None)]
    left = {"request_percentage": 250.5}
    until(lambda: quotas(wire, component, strict=True) == {of_user: left}, "one quota")
    for each in ({"user": user}, {"client-id": client, "user": user}):
        every: dict[str, float | None] = dict.fromkeys(
            ("request_percentage", "controller_mutation_rate")
        )
        assert alter_quotas(wire, entry(dict(each), every)) == [(0, None)]
    until(lambda: quotas(wire, component) == {}, "no quota")


def test_invalid_quotas_are_refused_each_on_its_own(
    wire: Wire, new_name: Callable[[], str]
) -> None:
    name = new_name()
    rate, connections = "producer_byte_rate", "connection_creation_rate"
    cases: list[tuple[Entity, dict[str, float | None], str]] = [
        ({}, {rate: 1.0}, "Invalid empty client quota entity"),
        ({"group": name}, {rate: 1.0}, "Unhandled client quota entity type: group"),
        ({"user": ""}, {rate: 1.0}, "Empty user not supported"),
        ({"user": name}, {"nope": 1.0}, "Invalid configuration key nope"),
        ({"user": name + "1"}, {connections: 1.0}, f"Invalid configuration key {connections}"),
        ({"user": name + "2"}, {rate: 0.0}, f"Quota {rate} must be greater than 0"),
        ({"user": name + "3"}, {rate: -1.0}, f"Quota {rate} must be greater than 0"),
        ({"user": name + "4"}, {rate: 1.5}, f"{rate} cannot be a fractional value."),
        ({"user": name + "5"}, {rate: 1e19}, f"Proposed value for {rate} is too large for a LONG."),
        ({"ip": "192.0.2.1"}, {rate: 1.0}, f"Invalid configuration key {rate}"),
        (
            {"ip": "192.0.2.2"},
            {connections: 3e9},
            f"Proposed value for {connections} is too large for an INT.",
        ),
        ({"ip": "no host"}, {connections: 1.0}, "no host is not a valid IP or resolvable host."),
        (
            {"ip": "192.0.2.3", "user": name},
            {connections: 1.0},
            "Invalid quota entity combination, IP entity shouldnot be combined with User or "
            "ClientId",
        ),
    ]
    # a foreign broker responds in another order
    for entity, ops, message in cases:
        assert alter_quotas(wire, entry(entity, ops)) == [(INVALID_REQUEST, message)]
    twice = entry({"user": name}, {rate: 5.0})
    shown = f"ClientQuotaEntity(entries={{user={name}}})"
    assert alter_quotas(wire, twice, twice) == [
        (INVALID_REQUEST, f"Ignoring duplicate entity {shown}")
    ]


def test_invalid_filters_of_quotas(wire: Wire) -> None:
    specified = "but also specified a match string."
    for components, refusal in (
        ([("", 2, None)], (INVALID_REQUEST, "Invalid empty entity type.")),
        ([("group", 2, None)], (UNSUPPORTED_VERSION, "Unsupported entity type group")),
        ([("user", 7, None)], (INVALID_REQUEST, "Unknown match type 7")),
        (
            [("user", 0, None)],
            (
                INVALID_REQUEST,
                "Request specified MATCH_TYPE_EXACT, but set match string to null.",
            ),
        ),
        (
            [("user", 1, "x")],
            (INVALID_REQUEST, f"Request specified MATCH_TYPE_DEFAULT, {specified}"),
        ),
        (
            [("user", 2, "x")],
            (INVALID_REQUEST, f"Request specified MATCH_TYPE_SPECIFIED, {specified}"),
        ),
        (
            [("user", 2, None), ("user", 0, "a")],
            (INVALID_REQUEST, "Entity type user cannot appear more than once in the filter."),
        ),
        (
            [("ip", 2, None), ("user", 2, None)],
            (
                INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be "
                "used with user or clientId filter component.",
            ),
        ),
    ):
        assert quotas(wire, *components) == refusal

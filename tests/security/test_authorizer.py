"""The authorizer against a naive model of Apache Kafka's rules, and its edges one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.limits import AUTHORIZER_DECISIONS_MAX, AUTHORIZER_NAME_CHARS_CACHED_MAX
from mqd.protocol.slices import all_slices
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.authorizer import Authorizer, parse_super_users, resource_text
from mqd.security.principal import Principal

ALLOW, DENY = Permission.ALLOW, Permission.DENY
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "127.0.0.1"


def acl(
    operation: Operation = READ,
    name: str = "orders",
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    permission: Permission = ALLOW,
    resource_type: ResourceType = TOPIC,
) -> Acl:
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def authorizer(*acls: Acl, super_users: Sequence[str] = (), allow: bool = False) -> Authorizer:
    made = Authorizer(super_users, allow_if_no_acl=allow)
    for number, one in enumerate(acls):
        made.add(UUID(int=number), one)
    return made


# -- the model -------------------------------------------------------------------------------------

IMPLIES = {
    DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def matches(one: Acl, resource_type: ResourceType, name: str) -> bool:
    return one.resource_type == resource_type and (
        name.startswith(one.resource_name)
        if one.pattern_type == PREFIXED
        else one.resource_name in (name, "*")
    )


def model(
    acls: Sequence[Acl],
    allow_if_no_acl: bool,
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> bool:
    matching = [one for one in acls if matches(one, resource_type, name)]
    mine = [
        one
        for one in matching
        if one.principal in (principal, "User:*") and one.host in (host, "*")
    ]
    if any(one.permission == DENY and one.operation in (ALL, operation) for one in mine):
        return False
    allowing = {ALL, operation} | IMPLIES.get(operation, set())
    if any(one.permission == ALLOW and one.operation in allowing for one in mine):
        return True
    return allow_if_no_acl and not matching


def model_of_type(
    acls: Sequence[Acl], principal: str, host: str, operation: Operation, of: ResourceType
) -> bool:
    """Kafka's loop over all ACLs of the type."""
    mine = [
        one
        for one in acls
        if one.resource_type == of
        and one.principal in (principal, "User:*")
        and one.host in (host, "*")
        and one.operation in (ALL, operation)
    ]
    denied = [one for one in mine if one.permission == DENY]
    if any(one.resource_name == "*" and one.pattern_type == LITERAL for one in denied):
        return False
    for one in mine:
        if one.permission == DENY:
            continue
        if one.resource_name == "*" and one.pattern_type == LITERAL:
            return True
        covered = any(
            one.resource_name.startswith(other.resource_name)
            if other.pattern_type == PREFIXED
            else one.pattern_type == LITERAL and other.resource_name == one.resource_name
            for other in denied
        )
        if not covered:
            return True
    return False


NAMES = st.text("ab", min_size=1, max_size=3)
ACLS = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    st.one_of(NAMES, st.just("*")),
    st.sampled_from([LITERAL, PREFIXED]),
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from(["*", HOST, "10.0.0.1"]),
    st.sampled_from([op for op in Operation if op > Operation.ANY]),
    st.sampled_from([ALLOW, DENY]),
)
QUESTIONS = st.tuples(
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([HOST, "10.0.0.1"]),
    st.sampled_from([op for op in Operation if op > ALL]),
    st.sampled_from([TOPIC, GROUP]),
    NAMES,
)


@given(
    st.lists(st.tuples(st.booleans(), ACLS), max_size=12),
    st.lists(QUESTIONS, min_size=1, max_size=8),
    st.booleans(),
)
def test_decisions_are_those_of_the_model(
    changes: list[tuple[bool, Acl]],
    questions: list[tuple[Principal, str, Operation, ResourceType, str]],
    allow_if_no_acl: bool,
) -> None:
    """ACLs come and go. After each change, every question has the answer of the model, also from
    the cache.
    """
    made = Authorizer(allow_if_no_acl=allow_if_no_acl)
    present: dict[UUID, Acl] = {}
    for number, (adds, one) in enumerate([*changes, (False, acl())]):
        if adds or not present:
            made.add(UUID(int=number), one)
            present[UUID(int=number)] = one
        else:
            gone = next(iter(present))
            made.remove(gone)
            del present[gone]
        acls = list(present.values())
        for principal, host, operation, resource_type, name in questions:
            expected = model(
                acls, allow_if_no_acl, str(principal), host, operation, resource_type, name
            )
            for _ in range(2):
                found = (
                    made.permissions(principal, host).rule(operation, resource_type, name).allowed
                )
                assert found == expected, (acls, principal, host, operation, name)
            of_type = all_slices(
                made.permissions(principal, host).any_of_type(operation, resource_type)
            )
            assert of_type == (
                model_of_type(acls, str(principal), host, operation, resource_type)
                or model(
                    acls,
                    allow_if_no_acl,
                    str(principal),
                    host,
                    operation,
                    resource_type,
                    "hardcode",
                )
            ), (acls, principal, host, operation)
    other = Authorizer(allow_if_no_acl=allow_if_no_acl)
    for id, one in present.items():
        other.add(id, one)
        made.remove(id)
    assert len(other) == len(present)
    assert (len(made), made._exact, made._prefixed, made._of_principal) == (0, {}, {}, {})
    assert not any(list(one.at_most(1000)) for one in made._prefix_lengths.values())


# -- edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acls", "question", "rule"),
    [
        ([], (ALICE, READ, "orders"), "DefaultDeny"),
        ([acl()], (ALICE, READ, "orders"), "ALLOW User:alice READ Topic:LITERAL:orders from *"),
        ([acl()], (ALICE, DESCRIBE, "orders"), "ALLOW User:alice READ Topic:LITERAL:orders from *"),
        ([acl()], (ALICE, WRITE, "orders"), "DefaultDeny"),
        ([acl()], (BOB, READ, "orders"), "DefaultDeny"),
        ([acl()], (ALICE, READ, "orders-2"), "DefaultDeny"),
        (
            [acl(), acl(DESCRIBE, permission=DENY)],
            (ALICE, READ, "orders"),
            "ALLOW User:alice READ Topic:LITERAL:orders from *",
        ),
        (
            [acl(), acl(name="ord", pattern=PREFIXED, permission=DENY)],
            (ALICE, READ, "orders"),
            "DENY User:alice READ Topic:PREFIXED:ord from *",
        ),
        (
            [acl(ALL, "*", principal="User:*"), acl(ALL, host=HOST, permission=DENY)],
            (ALICE, WRITE, "orders"),
            "DENY User:alice ALL Topic:LITERAL:orders from 127.0.0.1",
        ),
        ([acl(host="10.0.0.1")], (ALICE, READ, "orders"), "DefaultDeny"),
        ([acl(name="*", pattern=PREFIXED)], (ALICE, READ, "orders"), "DefaultDeny"),
    ],
)
def test_the_rule_that_decides(
    acls: list[Acl], question: tuple[Principal, Operation, str], rule: str
) -> None:
    principal, operation, name = question
    found = authorizer(*acls).permissions(principal, HOST).rule(operation, TOPIC, name)
    assert str(found) in (rule, f"MatchingAcl({rule})")
    assert found.allowed == (found.acl is not None and found.acl.permission == ALLOW)


def test_super_users_and_resources_without_acls() -> None:
    made = authorizer(acl(permission=DENY, principal="User:*"), super_users=["User:alice"])
    assert made.permissions(ALICE, HOST).rule(READ, TOPIC, "orders").allowed
    assert not made.permissions(BOB, HOST).rule(READ, TOPIC, "orders").allowed
    assert all_slices(made.permissions(ALICE, HOST).any_of_type(WRITE, TOPIC))
    opened = authorizer(acl(principal="User:bob"), allow=True)
    assert opened.permissions(ALICE, HOST).rule(READ, TOPIC, "other").allowed
    assert not opened.permissions(ALICE, HOST).rule(READ, TOPIC, "orders").allowed


def test_authorized_operations_have_kafkas_bits() -> None:
    made = authorizer(acl(ALL), acl(WRITE, permission=DENY), acl(READ, "g", resource_type=GROUP))
    permissions = made.permissions(ALICE, HOST)
    assert permissions.operations(TOPIC, "orders") == sum(1 << n for n in (3, 5, 6, 7, 8, 10, 11))
    assert permissions.operations(GROUP, "g") == 1 << READ | 1 << DESCRIBE
    assert permissions.operations(CLUSTER, "kafka-cluster") == 0


def test_the_cache_is_bounded() -> None:
    made = authorizer(acl())
    for number in range(AUTHORIZER_DECISIONS_MAX + 10):
        made.permissions(ALICE, HOST).rule(READ, TOPIC, f"t{number}")
    assert len(made.permissions(ALICE, HOST).decisions) <= 10
    made.permissions(ALICE, HOST).rule(READ, TOPIC, "x" * (AUTHORIZER_NAME_CHARS_CACHED_MAX + 1))
    assert all(len(key[2]) < 250 for key in made.permissions(ALICE, HOST).decisions)


def test_a_decision_does_not_walk_over_other_acls() -> None:
    """A question looks only at the ACLs of its resource and principal, among ten thousand."""
    made = authorizer(
        *(acl(name=f"t{n}", principal=f"User:{n}") for n in range(5_000)),
        *(acl(name=f"p{n}", pattern=PREFIXED, principal=f"User:{n}") for n in range(5_000)),
    )
    assert len(list(made._matching(TOPIC, "t17"))) == 1
    assert len(list(made._matching(TOPIC, "p17-x"))) == 2  # p1 and p17
    lengths = made._prefix_lengths[TOPIC]
    assert list(lengths.at_most(1000)) == [5, 4, 3, 2]
    assert list(lengths.at_most(3)) == [3, 2]


def test_a_decision_does_not_walk_over_acls_of_other_hosts() -> None:
    """A question looks only at the ACLs of its host, among ten thousand of its principal."""
    made = authorizer(
        *(acl(name="*", host=f"h{n}") for n in range(10_000)), acl(WRITE, "*", host=HOST)
    )
    assert len(made.relevant("User:alice", HOST, TOPIC, "orders").acls) == 1
    assert made.permissions(ALICE, HOST).rule(WRITE, TOPIC, "orders").allowed
    assert not made.permissions(ALICE, HOST).rule(READ, TOPIC, "orders").allowed


def test_all_operations_of_a_resource_need_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = authorizer(acl(READ, "g", PREFIXED, resource_type=GROUP))
    searched: list[str] = []
    matching = made._matching

    def noted(resource_type: ResourceType, name: str) -> Iterator[Any]:
        searched.append(name)
        return matching(resource_type, name)

    monkeypatch.setattr(made, "_matching", noted)
    name = "g" * (AUTHORIZER_NAME_CHARS_CACHED_MAX + 1)
    assert made.permissions(ALICE, HOST).operations(GROUP, name) == 1 << READ | 1 << DESCRIBE
    assert searched == [name]


def test_super_users_as_text() -> None:
    assert parse_super_users("User:admin; User:CN=a,O=b;") == ["User:admin", "User:CN=a,O=b"]
    with pytest.raises(ValueError, match="'admin' is not a principal"):
        parse_super_users("admin")


def test_resources_as_kafka_names_them() -> None:
    assert resource_text(ResourceType.TRANSACTIONAL_ID, "t") == "TransactionalId:LITERAL:t"

"""Filters of ACLs give the answers of Apache Kafka's AclBindingFilter."""

from __future__ import annotations

import pytest

from mqd.security.acl_filters import AclFilter
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType

LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ANY, MATCH = PatternType.ANY, PatternType.MATCH


def acl(name: str = "orders", pattern: PatternType = LITERAL) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, "User:a", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize(
    ("wanted", "rule", "matches"),
    [
        (AclFilter(), acl(), True),
        (AclFilter(resource_type=ResourceType.TOPIC), acl(), True),
        (AclFilter(resource_type=ResourceType.GROUP), acl(), False),
        (AclFilter(resource_type=ResourceType.UNKNOWN), acl(), False),
        (AclFilter(principal="User:a", host="*"), acl(), True),
        (AclFilter(principal="User:b"), acl(), False),
        (AclFilter(host="10.0.0.1"), acl(), False),
        (AclFilter(operation=Operation.READ), acl(), True),
        (AclFilter(operation=Operation.ALL), acl(), False),
        (AclFilter(permission=Permission.DENY), acl(), False),
        (AclFilter(resource_name="orders"), acl(), True),
        (AclFilter(resource_name="order"), acl(), False),
        (AclFilter(resource_name="orders"), acl("*"), False),
        (AclFilter(resource_name="orders", pattern_type=LITERAL), acl("orders", PREFIXED), False),
        (AclFilter(resource_name="orders", pattern_type=PREFIXED), acl("orders", PREFIXED), True),
        (AclFilter(resource_name="orders", pattern_type=PREFIXED), acl("ord", PREFIXED), False),
        (AclFilter(resource_name="orders", pattern_type=MATCH), acl("ord", PREFIXED), True),
        (AclFilter(resource_name="ord", pattern_type=MATCH), acl("orders", PREFIXED), False),
        (AclFilter(resource_name="orders", pattern_type=MATCH), acl("*"), True),
        (AclFilter(resource_name="orders", pattern_type=MATCH), acl(), True),
        (AclFilter(resource_name="orders", pattern_type=ANY), acl("ord", PREFIXED), False),
        (AclFilter(pattern_type=PREFIXED), acl("ord", PREFIXED), True),
        (AclFilter(pattern_type=PREFIXED), acl(), False),
    ],
)
def test_filters(wanted: AclFilter, rule: Acl, matches: bool) -> None:
    assert wanted.matches(rule) == matches

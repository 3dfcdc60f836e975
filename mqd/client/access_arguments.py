"""Checks of arguments about access: ACLs, SCRAM credentials and client quotas. As `arguments.py`:
InvalidType or InvalidValue, before anything is sent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from numbers import Real
from typing import Any

from mqd.client.access import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    QuotaEntity,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    text_of_entity,
)
from mqd.client.arguments import (
    as_list,
    check_choice,
    check_mapping,
    check_member,
    check_string,
    check_text,
    check_whole,
    shown,
)
from mqd.client.errors import invalid_type, invalid_value
from mqd.security.quotas import CLIENT_ENTITY, IP_ENTITY, USER_ENTITY
from mqd.security.scram import ITERATIONS_MAX, ITERATIONS_MIN

_ACL_EXAMPLE = (
    "Acl(AclResourceType.TOPIC, 'orders', PatternType.LITERAL, 'User:alice', '*', "
    "AclOperation.READ, AclPermission.ALLOW)"
)
_FILTER_EXAMPLE = "AclFilter(principal='User:alice')"
_ENTITY_EXAMPLE = "(('user', 'alice'),)"
_UPSERTION_EXAMPLE = "ScramUpsertion('alice', ScramMechanism.SHA_256, password)"
ENTITY_TYPES = (USER_ENTITY, CLIENT_ENTITY, IP_ENTITY)
_ENUMS: Mapping[str, type[IntEnum]] = {
    "resource_type": AclResourceType,
    "pattern_type": PatternType,
    "operation": AclOperation,
    "permission": AclPermission,
}


def check_acls(name: str, values: object) -> list[Acl]:
    """Several ACLs."""
    if isinstance(values, Acl):
        raise invalid_type(f"{name} is one Acl", f"give a list: [{_ACL_EXAMPLE}]")
    acls = as_list(name, values, f"[{_ACL_EXAMPLE}]")
    for each in acls:
        if not isinstance(each, Acl):
            raise invalid_type(f"one of {name} is {shown(each)}", f"give {_ACL_EXAMPLE}")
        _check_enums(each)
        check_text("the resource_name of an Acl", each.resource_name, "orders")
        check_text("the principal of an Acl", each.principal, "User:alice")
        check_text("the host of an Acl", each.host, "*")
    return acls


def check_acl_filter(name: str, value: object) -> None:
    """A filter of ACLs."""
    if not isinstance(value, AclFilter):
        raise invalid_type(f"{name} is {shown(value)}", f"give {_FILTER_EXAMPLE}")
    _check_enums(value)
    for field, example in (
        ("resource_name", "orders"),
        ("principal", "User:alice"),
        ("host", "*"),
    ):
        text = getattr(value, field)
        if text is not None:
            check_string(f"the {field} of an AclFilter", text, example)


def check_acl_filters(name: str, values: object) -> list[AclFilter]:
    """Several filters of ACLs."""
    if isinstance(values, AclFilter):
        raise invalid_type(f"{name} is one AclFilter", f"give a list: [{_FILTER_EXAMPLE}]")
    filters = as_list(name, values, f"[{_FILTER_EXAMPLE}]")
    for each in filters:
        check_acl_filter(f"one of {name}", each)
    return filters


def _check_enums(value: Acl | AclFilter) -> None:
    for field, kind in _ENUMS.items():
        check_member(f"the {field} of {type(value).__name__}", getattr(value, field), kind)


def check_alterations(name: str, values: object) -> list[ScramUpsertion | ScramDeletion]:
    """Several changes of SCRAM credentials."""
    if isinstance(values, ScramUpsertion | ScramDeletion):
        raise invalid_type(f"{name} is one alteration", f"give a list: [{_UPSERTION_EXAMPLE}]")
    alterations = as_list(name, values, f"[{_UPSERTION_EXAMPLE}]")
    for each in alterations:
        if not isinstance(each, ScramUpsertion | ScramDeletion):
            # not the value: it may contain a password
            kind = type(each).__name__
            raise invalid_type(f"one of {name} is a {kind}", f"give {_UPSERTION_EXAMPLE}")
        check_text("the user of an alteration", each.user, "alice")
        check_member("the mechanism of an alteration", each.mechanism, ScramMechanism)
        if each.mechanism is ScramMechanism.UNKNOWN:
            raise invalid_value("the mechanism of an alteration is UNKNOWN", "choose a known one")
        if isinstance(each, ScramUpsertion):
            _check_password(each.password)
            check_whole("iterations", each.iterations, ITERATIONS_MIN, ITERATIONS_MAX)
    return alterations


def _check_password(value: object) -> None:
    """No message shows the value."""
    if not isinstance(value, str):
        raise invalid_type("the password of an upsertion is not a str", "give a str")
    if not value:
        raise invalid_value("the password of an upsertion is empty", "give at least one character")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid_value(
            "the password of an upsertion is not valid UTF-8", "use valid Unicode text"
        ) from None


def as_entity(name: str, value: object) -> QuotaEntity:
    """An entity, sorted by type."""
    example = f"give pairs of type and name, for example {_ENTITY_EXAMPLE}"
    if not isinstance(value, tuple) or not value:
        raise invalid_type(f"{name} is {shown(value)}", example)
    for pair in value:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise invalid_type(f"{name} is {shown(value)}", example)
    return tuple(sorted(_checked_entity(name, dict(value)).items()))


def as_entity_filter(name: str, value: object) -> dict[str, str | None]:
    """Names by entity type; None is the default."""
    if value is None:
        return {}
    check_mapping(name, value, "{'user': 'alice'}")
    assert isinstance(value, Mapping)
    return _checked_entity(name, dict(value))


def check_entity_types(name: str, values: object) -> list[str]:
    """Several entity types."""
    kinds = as_list(name, values, "['user']")
    for kind in kinds:
        check_choice(f"a type in {name}", kind, ENTITY_TYPES)
    return kinds


def _checked_entity(name: str, names: dict[Any, Any]) -> dict[str, str | None]:
    for kind, text in names.items():
        check_choice(f"a type in {name}", kind, ENTITY_TYPES)
        if text is not None:
            check_text(f"the {kind} in {name}", text, "alice")
    return names


def as_quota_changes(name: str, changes: object) -> dict[QuotaEntity, dict[str, float | None]]:
    """The changes of each entity; a value of None removes the key."""
    check_mapping(name, changes, f"{{{_ENTITY_EXAMPLE}: {{'producer_byte_rate': 1e6}}}}")
    assert isinstance(changes, Mapping)
    wanted: dict[QuotaEntity, dict[str, float | None]] = {}
    for entity, limits in changes.items():
        checked = as_entity(f"a key of {name}", entity)
        whose = text_of_entity(checked)
        check_mapping(f"{name} of {whose}", limits, "{'producer_byte_rate': 1e6}")
        for key, limit in limits.items():
            check_text(f"a key in {name} of {whose}", key, "producer_byte_rate")
            if limit is not None:
                _check_limit(f"{key} of {whose}", limit)
        wanted[checked] = dict(limits)
    return wanted


def _check_limit(name: str, value: object) -> None:
    """A number above 0, as Kafka's brokers require it."""
    remedy = "it must be a number greater than 0"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid_type(f"{name} is {shown(value)}", remedy)
    number = float(value)
    if not number > 0:  # so neither is NaN
        whole = int(number) if number == number // 1 else number
        raise invalid_value(f"{name} is {whole}", remedy)

"""ACLs, SCRAM credentials and client quotas: decisions, the metadata version, the bound.

Messages and codes of single rows are compared with Apache Kafka's by
tests/conformance/test_wire_security.py.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest

from mqd.controller.acls import (
    CreateAcls,
    DeleteAcls,
    NewAcl,
    decide_create_acls,
    decide_delete_acls,
)
from mqd.controller.client_quotas import (
    AlterClientQuotas,
    QuotaAlteration,
    decide_alter_client_quotas,
)
from mqd.controller.commands import Command, encode_command
from mqd.controller.decision_options import DecisionOptions
from mqd.controller.scram_credentials import (
    AlterScramCredentials,
    ScramDeletion,
    ScramUpsertion,
    decide_alter_scram_credentials,
)
from mqd.errors import ErrorCode, MqError
from mqd.limits import ACL_BYTES_PER_REQUEST_MAX, ACL_NAME_BYTES_MAX, KIB
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.scram import derive_keys
from mqd.security.scram_credentials import ScramMechanism
from tests.controller.cluster import Replica, with_brokers
from tests.controller.test_size import codes, room_for

SHA_256 = ScramMechanism.SHA_256
USER = (("user", "alice"),)
SALTED = bytes.fromhex("c4a49510323ab4f952cac1fa99441939e78ea74d6be81ddf7096e87513dc615d")
"""The password "pencil" with the salt and the 4096 iterations of RFC 7677."""
SALT = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")


def acl(name: str, principal: str = "User:alice") -> Acl:
    return Acl(
        ResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        principal,
        "*",
        Operation.READ,
        Permission.ALLOW,
    )


def create(*acls: Acl, first: int = 1) -> CreateAcls:
    return CreateAcls(tuple(NewAcl(UUID(int=n), rule) for n, rule in enumerate(acls, first)))


def upsertion(user: str = "alice", iterations: int = 4096) -> ScramUpsertion:
    return ScramUpsertion(user, SHA_256, iterations, SALT, SALTED)


def quota(value: float | None, user: str = "alice") -> QuotaAlteration:
    return QuotaAlteration((("user", user),), (("producer_byte_rate", value),))


def test_an_acl_is_created_once_and_deleted_by_id() -> None:
    replica = with_brokers(1)
    before = replica.image.size
    rows = replica.run(decide_create_acls, create(acl("a"), acl("a"), acl("b", "alice")))
    assert codes(rows) == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    assert codes(replica.run(decide_create_acls, create(acl("a"), first=9))) == [ErrorCode.NONE]
    assert replica.image.acls == {UUID(int=1): acl("a")}
    replica.run(decide_delete_acls, DeleteAcls((UUID(int=7), UUID(int=1))))
    assert not replica.image.acls and replica.image.acl_id(acl("a")) is None
    assert replica.image.size == before


def test_many_acls_are_deleted_in_portions() -> None:
    replica = with_brokers(1)
    ids = []
    for first in range(0, 2_500, 500):
        op = create(*(acl(f"t{n}") for n in range(first, first + 500)), first=first + 1)
        ids += [new.acl_id for new in op.acls]
        replica.run(decide_create_acls, op)
    commands = len(replica.log)
    replica.run(decide_delete_acls, DeleteAcls(tuple(ids)))
    assert not replica.image.acls and len(replica.log) > commands + 1


def test_the_stored_keys_verify_the_password_and_do_not_contain_it() -> None:
    replica = with_brokers(1)
    assert codes(
        replica.run(decide_alter_scram_credentials, AlterScramCredentials((upsertion(),)))
    ) == [ErrorCode.NONE]
    stored = replica.image.scram_credentials["alice", SHA_256]
    keys = derive_keys(SHA_256, "pencil", SALT, 4096)
    assert (stored.stored_key, stored.server_key) == (keys.stored_key, keys.server_key)
    assert not any(SALTED in command for _, command in replica.log)
    assert SALTED.hex() not in repr(upsertion()) and str(SALTED) not in repr(upsertion())
    deleted = AlterScramCredentials((ScramDeletion("alice", SHA_256),))
    assert codes(replica.run(decide_alter_scram_credentials, deleted)) == [ErrorCode.NONE]
    assert not replica.image.scram_credentials


def test_a_user_in_two_alterations_keeps_its_credential() -> None:
    replica = with_brokers(1)
    op = AlterScramCredentials((upsertion(), upsertion("bob"), upsertion(iterations=8192)))
    rows = replica.run(decide_alter_scram_credentials, op)
    assert [(row.user, row.error_code) for row in rows] == [
        ("alice", ErrorCode.DUPLICATE_RESOURCE),
        ("bob", ErrorCode.NONE),
    ]
    assert list(replica.image.scram_credentials) == [("bob", SHA_256)]


def test_quotas_are_set_changed_and_removed() -> None:
    replica = with_brokers(1)

    def alter(*alterations: QuotaAlteration, validate_only: bool = False) -> list[ErrorCode]:
        return codes(
            replica.run(decide_alter_client_quotas, AlterClientQuotas(alterations, validate_only))
        )

    assert alter(quota(5.0), validate_only=True) == [ErrorCode.NONE]
    assert not replica.image.client_quotas
    assert alter(quota(5.0), quota(0.0, "bob"), quota(float("nan"), "eve")) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    commands = len(replica.log)
    assert alter(quota(5.0)) == [ErrorCode.NONE] and len(replica.log) == commands, "no change"
    assert alter(quota(6.0), quota(7.0)) == [ErrorCode.INVALID_REQUEST], "one row for an entity"
    assert replica.image.client_quotas == {USER: {"producer_byte_rate": 5.0}}
    assert alter(quota(None)) == [ErrorCode.NONE]
    assert not replica.image.client_quotas


Decide = Callable[..., Any]
EACH: list[tuple[Decide, Any]] = [
    (decide_create_acls, create(acl("a"))),
    (decide_alter_scram_credentials, AlterScramCredentials((upsertion(),))),
    (decide_alter_client_quotas, AlterClientQuotas((quota(5.0),))),
]


@pytest.mark.parametrize(("decide", "op"), EACH)
def test_the_previous_release_must_be_able_to_read_the_metadata(decide: Decide, op: Any) -> None:
    replica = with_brokers(1)
    replica.image.features["mqd.metadata.version"] = 2
    with pytest.raises(MqError, match="mqctl feature upgrade") as refused:
        replica.run(decide, op)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_they_leave_room_for_topics() -> None:
    replica = with_brokers(1)
    options = DecisionOptions(image_bytes_max=256 * KIB)
    rows: list[ErrorCode] = []
    for first in range(0, 500, 100):
        op = create(*(acl(f"t{n}") for n in range(first, first + 100)), first=first + 1)
        rows += codes(replica.run(decide_create_acls, op, options))
    assert rows.count(ErrorCode.POLICY_VIOLATION) > 100
    assert 60 * KIB < replica.image.access_size <= 64 * KIB
    gone = DeleteAcls(tuple(replica.image.acls))
    replica.run(decide_delete_acls, gone, options)
    assert replica.image.access_size == 0


@pytest.mark.parametrize(("decide", "op"), EACH)
def test_the_bound_on_the_metadata_applies(decide: Decide, op: Any) -> None:
    replica: Replica = with_brokers(1)
    assert codes(replica.run(decide, op, room_for(replica, 100))) == [ErrorCode.POLICY_VIOLATION]
    assert codes(replica.run(decide, op, DecisionOptions())) == [ErrorCode.NONE]


def test_the_names_in_acls_are_bounded() -> None:
    replica = with_brokers(1)
    longest = acl("a" * ACL_NAME_BYTES_MAX)
    longer = acl("é" * (ACL_NAME_BYTES_MAX // 2) + "a")
    many = [acl(longest.resource_name[:-6] + f"{n:06}") for n in range(300)]
    op = create(longest, longer, *many)
    results = decide_create_acls(replica.image, op, DecisionOptions()).reply
    found = codes(results)
    created = ACL_BYTES_PER_REQUEST_MAX // (ACL_NAME_BYTES_MAX + 20)
    assert found[0] is ErrorCode.NONE
    assert found[1] is ErrorCode.INVALID_REQUEST
    assert "4097 bytes" in results[1].error_message
    assert created - 2 <= found.count(ErrorCode.NONE) <= created
    assert "split the request" in results[-1].error_message


def test_an_acl_that_fits_into_no_command_is_refused_alone() -> None:
    """Random text, of which no compression makes a command."""
    dice = Random(1)

    def text(size: int) -> str:
        return "".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(size))

    large = Acl(
        ResourceType.TOPIC,
        text(1000),
        PatternType.LITERAL,
        f"User:{text(30_000)}",
        text(30_000),
        Operation.READ,
        Permission.ALLOW,
    )
    image = with_brokers(1).image
    decided = decide_create_acls(image, create(large, acl("small")), DecisionOptions())
    assert codes(decided.reply) == [ErrorCode.POLICY_VIOLATION, ErrorCode.NONE]
    assert len(decided.records) == 1
    encode_command(Command(0, decided.records))

"""ACLs, SCRAM credentials and client quotas of `Admin`, with mqd's decisions in a model broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from mqd.client import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Admin,
    ClientError,
    ErrorCode,
    PatternType,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    connect,
)
from mqd.client.access import QuotaEntity
from mqd.security.authorizer import Authorizer
from mqd.security.scram import derive_keys
from tests.client.fake import FakeCluster, HangUp

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = (("user", "alice"),)


@asynccontextmanager
async def administering(cluster: FakeCluster) -> AsyncIterator[Admin]:
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=5.0) as client:
        yield Admin(client, timeout_s=10.0)


def acl(name: str, principal: str = "User:alice") -> Acl:
    return Acl(
        AclResourceType.TOPIC,
        name,
        PatternType.LITERAL,
        principal,
        "*",
        AclOperation.READ,
        AclPermission.ALLOW,
    )


async def test_acls(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    cluster.one.script(30, HangUp(after=True))
    async with administering(cluster) as admin:
        results = await admin.create_acls([acl("b"), acl("a"), acl("a", "alice")])
        refused = results[acl("a", "alice")]
        assert isinstance(refused, ClientError) and refused.code is ErrorCode.INVALID_REQUEST
        assert "no colon is present" in refused.message
        assert results[acl("a")] is None, "also after an attempt without response"
        assert await admin.describe_acls() == [acl("a"), acl("b")]
        assert await admin.describe_acls(AclFilter(resource_name="b")) == [acl("b")]
        of_alice, none = AclFilter(principal="User:alice"), AclFilter(principal="User:bob")
        deleted = await admin.delete_acls([of_alice, none])
        assert deleted == {of_alice: [acl("a"), acl("b")], none: []}
        assert await admin.describe_acls() == []
        cluster.access.authorizer = Authorizer(enforces=False)
        with pytest.raises(ClientError, match="No Authorizer is configured"):
            await admin.describe_acls()


async def test_users(nursery: trio.Nursery) -> None:
    cluster = FakeCluster(nursery)
    async with administering(cluster) as admin:
        alterations = [
            ScramUpsertion("bob", SHA_512, "b", 8192),
            ScramUpsertion("alice", SHA_256, "pencil"),
        ]
        assert await admin.alter_user_scram_credentials(alterations) == {"bob": None, "alice": None}
        stored = cluster.access.replica.image.scram_credentials["alice", SHA_256]
        keys = derive_keys(SHA_256, "pencil", stored.salt, stored.iterations)
        assert stored.stored_key == keys.stored_key
        assert await admin.describe_user_scram_credentials() == {
            "alice": [(SHA_256, 4096)],
            "bob": [(SHA_512, 8192)],
        }
        gone = [ScramDeletion("alice", SHA_256), ScramDeletion("eve", SHA_256)]
        results = await admin.alter_user_scram_credentials(gone)
        refused = results["eve"]
        assert isinstance(refused, ClientError) and refused.code is ErrorCode.RESOURCE_NOT_FOUND
        found = await admin.describe_user_scram_credentials(["alice", "bob"])
        assert isinstance(found["alice"], ClientError) and found["bob"] == [(SHA_512, 8192)]
        with pytest.raises(ClientError, match="'bob' is in two alterations"):
            await admin.alter_user_scram_credentials([alterations[0]] * 2)


async def test_no_message_shows_a_password(nursery: trio.Nursery) -> None:
    async with administering(FakeCluster(nursery)) as admin:
        for wrong in (
            ("alice", SHA_256, "sesame"),
            ScramUpsertion("", SHA_256, "sesame"),
            ScramUpsertion("alice", SHA_256, "sesame", iterations=1),
            ScramUpsertion("alice", SHA_256, b"sesame"),  # type: ignore[arg-type]  # wrong on purpose
            ScramUpsertion("alice", SHA_256, "sesame\ud800"),
        ):
            with pytest.raises(ClientError) as refused:
                await admin.alter_user_scram_credentials([wrong])  # type: ignore[list-item]
            assert "sesame" not in str(refused.value)
    assert "sesame" not in repr(ScramUpsertion("alice", SHA_256, "sesame"))


async def test_quotas(nursery: trio.Nursery) -> None:
    async with administering(FakeCluster(nursery)) as admin:
        default = (("user", None), ("client-id", "c"))
        changes: dict[QuotaEntity, dict[str, float | None]] = {
            ALICE: {"producer_byte_rate": 1024, "request_percentage": 12.5},
            default: {"consumer_byte_rate": 5.0},
            (("ip", "nowhere"),): {"connection_creation_rate": 1.0},
        }
        results = await admin.alter_client_quotas(changes)
        assert [isinstance(each, ClientError) for each in results.values()] == [False, False, True]
        of_alice: dict[str, float] = {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
        none: dict[str, float | None] = dict.fromkeys(of_alice)
        of_default: dict[QuotaEntity, dict[str, float]]
        of_default = {(("client-id", "c"), ("user", None)): {"consumer_byte_rate": 5.0}}
        assert await admin.describe_client_quotas() == of_default | {ALICE: of_alice}
        assert await admin.describe_client_quotas({"user": None}) == of_default
        assert await admin.describe_client_quotas(types=["client-id"]) == of_default
        assert await admin.describe_client_quotas(types=["user"], strict=True) == {ALICE: of_alice}
        await admin.alter_client_quotas({ALICE: none})
        assert await admin.describe_client_quotas({"user": "alice"}) == {}

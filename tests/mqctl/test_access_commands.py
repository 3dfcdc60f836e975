"""`mqctl user`, `mqctl acl` and `mqctl quota`, with a fake cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mqd.security.scram import derive_keys
from tests.client.loopback import Loopback
from tests.ran import Ran

Mqctl = Callable[..., Ran]


def test_users(
    mqctl: Mqctl, served: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requested = mqctl("user", "create", "alice")
    assert (
        requested.code == 2
        and "--password-file" in requested.err
        and "MQCTL_USER_PASSWORD" in requested.err
    )
    monkeypatch.setenv("MQCTL_USER_PASSWORD", "sesame")
    both = ("--mechanism", "SCRAM-SHA-256", "--mechanism", "scram-sha-512")
    made = mqctl("user", "create", "alice", *both, "--iterations", "8192")
    assert made.code == 0 and "Created user 'alice'" in made.err
    again = mqctl("user", "create", "alice")
    assert again.code == 1 and "User 'alice' already exists." in again.err
    rows = [
        {"user": "alice", "mechanism": f"SCRAM-SHA-{bits}", "iterations": 8192}
        for bits in (256, 512)
    ]
    assert mqctl("user", "list", "-o", "json").data == rows
    secret = tmp_path / "secret"
    secret.write_text("open\nanother line\n")
    changed = mqctl("user", "set-password", "alice", "--password-file", str(secret))
    assert changed.code == 0 and "Changed the password" in changed.err
    for (user, mechanism), stored in served.inside(
        lambda: dict(served.cluster.access.replica.image.scram_credentials)
    ).items():
        keys = derive_keys(mechanism, "open", stored.salt, 8192)
        assert (user, stored.stored_key) == ("alice", keys.stored_key)
    missing = mqctl("user", "set-password", "bob")
    assert missing.code == 1 and "User 'bob' does not exist." in missing.err
    one = mqctl("user", "delete", "alice", "--mechanism", "SCRAM-SHA-512", "--yes")
    assert one.code == 0 and mqctl("user", "list", "-o", "json").data == rows[:1]
    assert mqctl("user", "delete", "alice").code == 2, "asks first"
    gone = mqctl("user", "delete", "alice", "bob", "--yes")
    assert gone.code == 3 and "User 'bob' does not exist." in gone.err
    assert "no users" in mqctl("user", "list").err
    every = requested, made, again, changed, missing, one, gone
    assert not any("sesame" in ran.out + ran.err or "open" in ran.out for ran in every)


def test_acls(mqctl: Mqctl, served: Loopback) -> None:
    read = ("--allow", "User:alice", "--operation", "read")
    made = mqctl("acl", "create", *read, "--topic", "orders", "--group", "billing")
    assert made.code == 0 and "User:alice" in made.out
    write = ("--deny", "User:*", "--operation", "write")
    from_one = ("--topic", "or", "--prefix", "--host", "10.0.0.1")
    assert mqctl("acl", "create", *write, *from_one).code == 0
    again = mqctl("acl", "create", *read, "--topic", "orders")
    assert (
        again.code == 0 and "ACL already exists: allow User:alice read topic 'orders'" in again.err
    )
    assert mqctl("acl", "create", *read).code == 2, "no resource"
    rows = mqctl("acl", "list", "--topic", "orders", "--matching", "-o", "json").data
    assert rows == [
        {
            "permission": "deny",
            "principal": "User:*",
            "host": "10.0.0.1",
            "operation": "write",
            "resource_type": "topic",
            "pattern": "prefixed",
            "resource": "or",
        },
        {
            "permission": "allow",
            "principal": "User:alice",
            "host": "*",
            "operation": "read",
            "resource_type": "topic",
            "pattern": "literal",
            "resource": "orders",
        },
    ]
    assert len(mqctl("acl", "list", "--principal", "User:alice", "-o", "json").data) == 2
    assert mqctl("acl", "delete").code == 2, "not all of them by mistake"
    requested = mqctl("acl", "delete", "--topic", "orders")
    assert requested.code == 2 and "allow User:alice read topic 'orders' from *" in requested.err
    assert mqctl("acl", "delete", "--topic", "orders", "--yes").code == 0
    assert len(mqctl("acl", "list", "-o", "json").data) == 2
    assert "no ACL matches" in mqctl("acl", "delete", "--topic", "orders", "--yes").err
    assert mqctl("acl", "delete", "--all", "--yes").code == 0
    assert "no ACLs" in mqctl("acl", "list").err


def test_a_producer_and_a_consumer_get_what_they_need(mqctl: Mqctl, served: Loopback) -> None:
    def rules(principal: str) -> set[tuple[str, str, str]]:
        rows = mqctl("acl", "list", "--principal", principal, "-o", "json").data
        assert all((row["permission"], row["host"]) == ("allow", "*") for row in rows)
        return {(row["resource_type"], row["resource"], row["operation"]) for row in rows}

    topic, group = ("--topic", "orders"), ("--group", "billing")
    of_alice = ("acl", "create", "--allow", "User:alice")
    assert mqctl(*of_alice, "--consumer", *topic, *group).code == 0
    reads = {("topic", "orders", "read"), ("topic", "orders", "describe")}
    assert rules("User:alice") == reads | {("group", "billing", "read")}
    of_bob = ("acl", "create", "--allow", "User:bob", "--producer", "--idempotent")
    assert mqctl(*of_bob, *topic, "--transactional-id", "t").code == 0
    assert rules("User:bob") == {
        ("topic", "orders", "write"),
        ("topic", "orders", "describe"),
        ("topic", "orders", "create"),
        ("transactional-id", "t", "write"),
        ("transactional-id", "t", "describe"),
        ("cluster", "kafka-cluster", "idempotent-write"),
    }
    for wrong, text in (
        ((*of_alice, "--consumer", *topic), "--consumer needs --group"),
        ((*of_alice, "--producer", *group), "--producer needs --topic"),
        ((*of_alice, "--producer", *topic, *group), "--producer: not for --group"),
        ((*of_alice, "--producer", "--operation", "read", *topic), "--producer: only with --allow"),
        (("acl", "create", "--deny", "User:a", "--producer", *topic), "only with --allow"),
        ((*of_alice, "--idempotent", *topic), "--idempotent needs --producer"),
        ((*of_alice, *topic), "specify what to allow"),
    ):
        done = mqctl(*wrong)
        assert done.code == 2 and text in done.err, wrong


def test_a_decision_is_explained(mqctl: Mqctl, served: Loopback) -> None:
    mqctl("acl", "create", "--allow", "User:alice", "--operation", "write", "--topic", "orders")
    options = {
        "authorizer.class.name": "x",
        "super.users": "User:root",
        "allow.everyone.if.no.acl.found": "false",
    }
    for principal, operation, code, rule in (
        ("User:alice", "describe", 0, "MatchingAcl"),
        ("alice", "describe", 0, "MatchingAcl"),
        ("Group:alice", "describe", 1, "DefaultDeny"),
        ("User:alice", "read", 1, "DefaultDeny"),
        ("User:root", "read", 0, "SuperUser"),
    ):
        rows = [{"name": name, "value": value} for name, value in options.items()]
        results = [{"resource_type": 4, "resource_name": "1", "configs": rows}]
        served.inside(lambda: served.cluster.one.script(32, {"results": results}))  # noqa: B023
        done = mqctl("acl", "check", principal, operation, "--topic", "orders", "-o", "json")
        (row,) = done.data
        assert (done.code, row["rule"], row["allowed"]) == (code, rule, code == 0)
        acl = "allow User:alice write topic 'orders' from *" if rule == "MatchingAcl" else None
        assert row["acl"] == acl


def test_a_name_alone_is_a_user(mqctl: Mqctl, served: Loopback) -> None:
    create = ("acl", "create", "--operation", "read", "--topic", "orders")
    rows = mqctl(*create, "--allow", "alice", "--deny", "*", "-o", "json").data
    assert sorted(row["principal"] for row in rows) == ["User:*", "User:alice"]
    (row,) = mqctl("acl", "list", "--principal", "alice", "-o", "json").data
    assert row["principal"] == "User:alice"
    (row,) = mqctl("acl", "delete", "--principal", "alice", "--yes", "-o", "json").data
    assert row["principal"] == "User:alice"
    done = mqctl(*create, "--allow", "")
    assert done.code == 2 and "specify User:NAME" in done.err


def test_quotas(mqctl: Mqctl, served: Loopback) -> None:
    done = mqctl("quota", "set", "--user", "alice", "producer_byte_rate=1024", "-o", "json")
    row = {"user": "alice", "client_id": None, "ip": None, "key": "producer_byte_rate"}
    assert done.data == [{**row, "value": 1024}]
    assert mqctl("quota", "set", "--user", "alice", "request_percentage=12.5").code == 0
    default = mqctl(
        "quota", "set", "--user", "<default>", "--client-id", "c", "consumer_byte_rate=5"
    )
    assert default.code == 0 and "<default>" in default.out
    assert len(mqctl("quota", "list", "-o", "json").data) == 3
    assert len(mqctl("quota", "list", "--user", "alice", "-o", "json").data) == 2
    assert mqctl("quota", "set", "producer_byte_rate=1").code == 2, "whom?"
    assert mqctl("quota", "set", "--user", "a", "producer_byte_rate=x").code == 2
    wrong = mqctl("quota", "set", "--user", "a", "nope=1")
    assert wrong.code == 1 and "error: user 'a': Invalid configuration key nope\n" in wrong.err
    assert "  the keys of users and client ids are producer_byte_rate, consumer_byte" in wrong.err
    wrong = mqctl("quota", "set", "--user", "a", "producer_byte_rat=1")
    assert "  did you mean 'producer_byte_rate'? The keys of users and client ids" in wrong.err
    wrong = mqctl("quota", "set", "--ip", "10.0.0.1", "producer_byte_rate=1")
    assert "  the keys of addresses are connection_creation_rate\n" in wrong.err
    wrong = mqctl("quota", "set", "--user", "bob", "producer_byte_rate=-5")
    assert wrong.err == (
        "error: producer_byte_rate of user 'bob' is -5\n  it must be a number greater than 0\n"
    )
    requested = mqctl("quota", "delete", "--user", "alice")
    assert requested.code == 2 and "producer_byte_rate, request_percentage" in requested.err
    gone = mqctl(
        "quota", "delete", "--user", "alice", "request_percentage", "nope", "--yes", "-o", "json"
    )
    assert gone.data == [{**row, "value": 1024}] and "no quota 'nope'" in gone.err
    assert mqctl("quota", "delete", "--user", "alice", "--yes").code == 0
    assert len(mqctl("quota", "list", "-o", "json").data) == 1


def test_acls_without_effect_are_refused(mqctl: Mqctl, served: Loopback) -> None:
    create = ("acl", "create", "--allow", "User:alice", "--operation")
    for arguments, text, remedy in (
        (
            ("create", "--group", "x"),
            "groups have no operation 'create'",
            "use one of all, read, delete, describe, describe-configs, alter-configs",
        ),
        (("read", "--cluster"), "the cluster has no operation 'read'", "idempotent-write"),
        (("read", "--topic", "x", "--host", "nohost"), "'nohost' is not an address", "or *"),
    ):
        done = mqctl(*create, *arguments)
        assert done.code == 2 and f"error: {text}\n" in done.err and remedy in done.err
    assert mqctl("acl", "list", "-o", "json").data == []
    for host in ("*", "10.0.0.1", "[::1]", "::1"):
        assert mqctl(*create, "read", "--group", "x", "--host", host).code == 0


def test_the_operations_of_each_resource_type() -> None:
    """The operations of kafka-acls.sh 4.3.1: its AclCommand lists them when it refuses one."""
    from mqctl.roles import OPERATIONS
    from mqd.client.access import AclResourceType

    found = {kind: set(operations.split()) for kind, (_, operations) in OPERATIONS.items()}
    assert found.keys() == {each.name for each in AclResourceType} - {"UNKNOWN", "ANY"}
    assert all("all" in operations for operations in found.values())
    assert found["GROUP"] == {
        *("alter-configs", "read", "delete", "all", "describe", "describe-configs")
    }
    assert found["TRANSACTIONAL_ID"] == {"write", "two-phase-commit", "all", "describe"}
    assert found["USER"] == {"describe-tokens", "create-tokens", "all"}


def test_users_and_quotas_that_do_not_exist(mqctl: Mqctl) -> None:
    gone = mqctl("user", "delete", "nobody", "--yes")
    assert gone.code == 1 and "list users with `mqctl user list`" in gone.err
    both = mqctl("quota", "set", "--user", "bob", "--ip", "10.0.0.1", "producer_byte_rate=1")
    assert both.code == 2
    assert "--ip cannot be combined with --user or --client-id" in both.err
    text = mqctl("quota", "set", "--user", "bob", "producer_byte_rate=abc").err
    assert "invalid value 'abc' for 'producer_byte_rate': expected a number" in text

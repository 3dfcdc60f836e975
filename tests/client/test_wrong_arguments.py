"""Wrong arguments of every public function: a sentence before anything is sent, and never a crash.

`CALLS` has each function with arguments that fit; a test replaces one of them at a time. A new
public method fails `test_the_table_has_every_public_function` until it is in the table.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

import mqd.client
from mqd.client import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Admin,
    AtTime,
    ClientClosed,
    ClientCrashed,
    ClientError,
    ClusterClient,
    CommittedOffset,
    ConfigChange,
    ConfigOperation,
    Consumer,
    GroupConsumer,
    GroupMetadata,
    InvalidType,
    InvalidValue,
    NewTopic,
    PatternType,
    Producer,
    RangeReader,
    RawProducer,
    Record,
    Resource,
    ResourceType,
    ScramMechanism,
    ScramUpsertion,
    ShareConsumer,
    ShareRecord,
    TopicPartition,
    TransactionalProducer,
    connect,
    end_transaction,
    open_consumer,
    open_group_consumer,
    open_producer,
    open_range,
    open_raw_producer,
    open_share_consumer,
    open_transactional_producer,
    resolve_offsets,
    sync,
)
from mqd.client.descriptions import ElectionType, Place
from tests.client.fake import FakeCluster

A0, Z0 = TopicPartition("a", 0), TopicPartition("a b", 0)
TOPIC_A = Resource(ResourceType.TOPIC, "a")
ACL = Acl(
    AclResourceType.TOPIC,
    "a",
    PatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)
SET_A = ConfigChange("retention.ms", ConfigOperation.SET, "1")
WORDS = ("give", "choose", "use ", "commit ", "encode ", "name ", "send ", "join a list")
"""The sentence says what to do with one of these."""

Arguments = dict[str, Any]

ADMIN: dict[str, Arguments] = {
    "create_topics": {"topics": [NewTopic("n")], "validate_only": True},
    "create_topic": {"name": "n", "partitions": 1, "replication_factor": 1, "configs": {}},
    "delete_topics": {"names": ["gone"]},
    "delete_topic": {"name": "gone"},
    "add_partitions": {"totals": {"a": 3}, "validate_only": True},
    "list_topics": {"internal": True},
    "describe_topics": {"names": ["a"]},
    "describe_configs": {"resources": [TOPIC_A], "keys": ["retention.ms"], "documentation": True},
    "alter_configs": {"changes": {TOPIC_A: [SET_A]}, "validate_only": True},
    "list_offsets": {"specs": {A0: "beginning"}, "read_committed": True},
    "delete_records": {"before": {A0: 0}},
    "list_epoch_ends": {"epochs": {A0: 0}},
    "describe_producers": {"partitions": [A0]},
    "describe_cluster": {},
    "describe_features": {},
    "update_features": {"levels": {"x": 1}, "validate_only": True},
    "describe_log_dirs": {"node_ids": [1]},
    "describe_usage": {"node_ids": [1]},
    "describe_partitions": {"topics": ["a"]},
    "describe_quorum": {},
    "elect_leaders": {"kind": ElectionType.PREFERRED, "partitions": [A0]},
    "alter_partition_reassignments": {"targets": {A0: [1]}},
    "list_partition_reassignments": {"partitions": [A0]},
    "unregister_broker": {"node_id": 7},
    "list_groups": {"states": ["Stable"], "types": ["classic"]},
    "list_groups_by_node": {"states": ["Stable"], "types": ["classic"]},
    "describe_groups": {"group_ids": ["g"]},
    "delete_groups": {"group_ids": ["gone"]},
    "remove_members": {"group_id": "g", "member_ids": ["m"], "instance_ids": ["i"], "reason": "r"},
    "list_group_offsets": {"group_ids": ["g"], "stable": True},
    "alter_group_offsets": {"group_id": "g", "offsets": {A0: 1}},
    "delete_group_offsets": {"group_id": "g", "partitions": [A0]},
    "list_share_group_offsets": {"group_ids": ["g"]},
    "alter_share_group_offsets": {"group_id": "g", "offsets": {A0: 1}},
    "delete_share_group_offsets": {"group_id": "g", "topics": ["orders"]},
    "group_lag": {"group_id": "g", "read_committed": True},
    "group_lags": {"group_ids": ["g"], "read_committed": True},
    "list_transactions": {
        "states": ["Ongoing"],
        "producer_ids": [1],
        "longer_than_ms": 1,
        "pattern": "t",
    },
    "list_transactions_by_node": {
        "states": ["Ongoing"],
        "producer_ids": [1],
        "longer_than_ms": 1,
        "pattern": "t",
    },
    "describe_transactions": {"transactional_ids": ["t"]},
    "fence_producers": {"transactional_ids": ["t"]},
    "abort_transaction": {"tp": A0, "producer_id": 1, "producer_epoch": 0, "coordinator_epoch": 0},
    "find_hanging_transactions": {"partitions": [A0], "older_than_ms": 1},
    "find_transaction": {"tp": A0, "producer_id": 1},
    "create_acls": {"acls": [ACL]},
    "describe_acls": {"matching": AclFilter()},
    "delete_acls": {"filters": [AclFilter(principal="User:gone")]},
    "explain_access": {
        "principal": "User:alice",
        "operation": AclOperation.READ,
        "resource_type": AclResourceType.TOPIC,
        "resource_name": "a",
        "host": "10.0.0.1",
    },
    "describe_user_scram_credentials": {"users": ["alice"]},
    "alter_user_scram_credentials": {
        "alterations": [ScramUpsertion("alice", ScramMechanism.SHA_256, "pencil")]
    },
    "describe_client_quotas": {"entity": {"user": "alice"}, "types": ["user"], "strict": True},
    "alter_client_quotas": {
        "changes": {(("user", "alice"),): {"producer_byte_rate": 1.0}},
        "validate_only": True,
    },
}
OPENERS: dict[str, Arguments] = {
    "open_consumer": {
        "start": {A0: "beginning"},
        "end": {A0: "end"},
        "read_committed": True,
        "reset": "end",
        "max_wait_ms": 1,
        "min_bytes": 1,
        "max_bytes": 1000,
        "partition_max_bytes": 1000,
        "weights": {"a": 2},
        "timeout_s": 1.0,
    },
    "open_producer": {
        "codec": "gzip",
        "partitioner": None,
        "linger_ms": 1,
        "batch_bytes": 1000,
        "buffer_bytes_max": 1000,
        "delivery_timeout_s": 1.0,
        "unknown_topic_grace_s": 1.0,
        "acks": "all",
        "idempotent": True,
    },
    "open_range": {
        "tp": A0,
        "start": 0,
        "end": 0,
        "read_committed": True,
        "bytes_max": 1000,
        "timeout_s": 1.0,
    },
    "open_raw_producer": {
        "transactional_id": "t",
        "transaction_timeout_ms": 1000,
        "two_phase": False,
        "in_flight_per_partition": 1,
        "request_bytes_max": 1000,
        "buffer_bytes_max": 1000,
        "delivery_timeout_s": 1.0,
        "timeout_s": 1.0,
        "close_timeout_s": 1.0,
    },
    "open_transactional_producer": {
        "transactional_id": "t",
        "transaction_timeout_ms": 1000,
        "timeout_s": 1.0,
        "close_timeout_s": 1.0,
        "leave": True,
        "codec": "none",
    },
    "open_group_consumer": {
        "group_id": "g",
        "topics": ["a"],
        "pattern": "a.*",
        "group_protocol": "classic",
        "assignors": ["range"],
        "server_assignor": "uniform",
        "instance_id": "i",
        "rack": "r",
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 1000,
        "max_poll_interval_ms": 6000,
        "metadata_max_age_ms": 1000,
        "auto_commit": False,
        "auto_commit_interval_ms": 1000,
        "reset": "end",
        "read_committed": True,
        "on_assigned": None,
        "on_revoked": None,
        "on_lost": None,
        "max_wait_ms": 1,
        "min_bytes": 1,
        "max_bytes": 1000,
        "partition_max_bytes": 1000,
        "weights": {"a": 2},
        "timeout_s": 1.0,
        "leave": True,
        "close_timeout_s": 1.0,
    },
    "open_share_consumer": {
        "group_id": "g",
        "topics": ["a"],
        "mode": "explicit",
        "acquire_mode": "record_limit",
        "max_records": 1,
        "rack": "r",
        "max_wait_ms": 1,
        "min_bytes": 1,
        "max_bytes": 1000,
        "acknowledge_linger_ms": 1,
        "on_acknowledgement_failed": None,
        "close_timeout_s": 1.0,
        "timeout_s": 1.0,
    },
}
FOUND: Arguments = {
    "partition": 0,
    "partitions": None,
    "read_committed": True,
    "timeout_s": 1.0,
}
FUNCTIONS: dict[str, Arguments] = {
    "find": {"topic": "a", "key": b"k", "since": 1, "until": 2, "last": True, **FOUND},
    "find_as_of": {"topic": "a", "key": b"k", "time": 1, **FOUND},
    "resolve_offsets": {"specs": {A0: "end"}, "timeout_s": 1.0, "read_committed": True},
    "end_transaction": {
        "transactional_id": "t",
        "producer_id": -1,
        "producer_epoch": -1,
        "commit": True,
        "timeout_s": 1.0,
    },
}
RECORD = {
    "topic": "a",
    "value": b"v",
    "key": b"k",
    "headers": [("h", b"v")],
    "timestamp": 1,
    "partition": 0,
}
SENT = {**RECORD, "deliver_at": 10**12, "delay": None}
FAILED = {"topic": "a", "record": Record(0, 1, b"k", b"v"), "source": A0, "group": "g"}
OFFSETS = {"offsets": {A0: CommittedOffset(1)}, "group": GroupMetadata("g")}
METHODS: dict[type, dict[str, Arguments]] = {
    Admin: ADMIN,
    Producer: {"send": SENT, "enqueue": RECORD, "retry": FAILED, "flush": {}},
    TransactionalProducer: {
        "send": SENT,
        "enqueue": RECORD,
        "retry": FAILED,
        "flush": {},
        "claim": {"topic": "a", "access": "exclusive", "timeout_s": 1.0},
        "begin": {},
        "commit": {},
        "abort": {},
        "transaction": {},
        "send_offsets": OFFSETS,
    },
    RawProducer: {
        "send": {"topic": "a", "batch": None},
        "send_all": {"batches": [("a", None)]},
        "flush": {},
        "begin": {},
        "commit": {},
        "abort": {},
        "prepare": {},
        "send_offsets": OFFSETS,
    },
    Consumer: {
        "next": {},
        "seek": {"tp": A0, "spec": 0},
        "position": {"tp": A0},
        "high_watermark": {"tp": A0},
        "pause": {"partitions": A0},
        "resume": {"partitions": A0},
    },
    GroupConsumer: {
        "next": {},
        "seek": {"tp": A0, "spec": 0},
        "position": {"tp": A0},
        "high_watermark": {"tp": A0},
        "pause": {"partitions": A0},
        "resume": {"partitions": A0},
        "commit": {"offsets": {A0: 1}},
        "committed": {"partitions": [A0]},
        "rewind": {},
        "consume_with_retry": {
            "producer": None,
            "handler": print,
            "retry_topic": "a.retry",
            "idle_s": 0.01,
        },
    },
    RangeReader: {"next": {}},
    ShareConsumer: {"next": {}, "flush": {}},
    ShareRecord: {
        "accept": {},
        "accept_soon": {},
        "release": {"delay": 1.0},
        "release_soon": {"delay": 1.0},
        "reject": {},
        "reject_soon": {},
        "renew": {},
    },
}
WITHOUT_ARGUMENTS = {
    "assignment",
    "paused",
    "close",
    "rejoin_count",
    "positions",
    "group_metadata",
    "acknowledge",
    "lock_ends",
    "stored",
}

JUNK: list[Any] = [
    object(),
    "",
    "x",
    "a b",
    "x" * 70_000,
    "\ud800",
    b"x",
    -7,
    2**70,
    float("nan"),
    [5],
    ["a b"],
    ["x" * 70_000],
    [A0],
    [Z0],
    [("a", 0)],
    {},
    {5: 5},
    {"a": "9"},
    {"a": 2**40},
    {A0: "x"},
    {A0: 2**70},
    {A0: -7},
    {A0: [2**40]},
    {A0: AtTime(-1)},
    {A0: CommittedOffset(1, "\ud800")},
    {A0: CommittedOffset(1, leader_epoch=2**40)},
    {Z0: 0},
    {TopicPartition("a", 2**40): 0},
    {TOPIC_A: [("a", "b")]},
    {TOPIC_A: [ConfigChange("a", ConfigOperation.SET)]},
    {TOPIC_A: SET_A},
    {"a": {"retention.ms": "1"}},
    [NewTopic("a b")],
    [NewTopic("n", partitions=2**40)],
    [NewTopic("n", configs={"a": None})],  # type: ignore[dict-item]
    [NewTopic("n", assignments={0: [2**40]})],
    NewTopic("n"),
    [Resource(5, 5)],  # type: ignore[arg-type]
    TOPIC_A,
    GroupMetadata("x" * 70_000),
    A0,
    Z0,
]


def check_sentence(error: ClientError) -> None:
    assert isinstance(error, ValueError | TypeError)
    assert str(error) == f"{error.message}: {error.remedy}"
    assert any(word in error.remedy for word in WORDS), error


async def check_each(name: str, fits: Arguments, call: Callable[..., Awaitable[Any]]) -> None:
    """Replace one argument at a time. An object is an InvalidType; other junk may be accepted or
    refused, but never crashes.
    """
    for argument in fits:
        for junk in JUNK:
            about = f"{name}({argument}={junk!a:.60})"
            try:
                await call(**fits | {argument: junk})
            except ClientCrashed as error:
                raise AssertionError(about) from error
            except (InvalidType, InvalidValue) as error:
                check_sentence(error)
            except ClientError:
                pass
            except BaseException as error:
                raise AssertionError(f"{about} raised {error!r}") from error
            else:
                assert type(junk) is not object, about


@asynccontextmanager
async def fake_client(nursery: trio.Nursery) -> AsyncIterator[ClusterClient]:
    cluster = FakeCluster(nursery)
    cluster.add_topic("a")
    async with connect([("fake", 9001)], network=cluster, request_timeout_s=1.0) as client:
        yield client


def test_the_table_has_every_public_function() -> None:
    public = {
        name
        for name in mqd.client.__all__
        if inspect.isfunction(getattr(mqd.client, name, None)) and "arrow" not in name
    }
    assert public == {*OPENERS, *FUNCTIONS, "attempts_of", "connect"}
    for kind, table in METHODS.items():
        methods = {name for name, _ in inspect.getmembers(kind, callable) if name[0] != "_"}
        assert methods - WITHOUT_ARGUMENTS - {"arrow_batches"} == set(table), kind
        for name, arguments in table.items():
            parameters = list(inspect.signature(getattr(kind, name)).parameters)
            assert parameters[1:] == list(arguments), name


@pytest.mark.parametrize("name", ADMIN)
async def test_admin(nursery: trio.Nursery, autojump_clock: trio.abc.Clock, name: str) -> None:
    async with fake_client(nursery) as client:
        await check_each(name, ADMIN[name], getattr(Admin(client, timeout_s=0.1), name))


@pytest.mark.parametrize("name", OPENERS)
async def test_openers(nursery: trio.Nursery, autojump_clock: trio.abc.Clock, name: str) -> None:
    async with fake_client(nursery) as client:

        async def call(**arguments: Any) -> None:
            async with getattr(mqd.client, name)(client, **arguments):
                pass

        await check_each(name, OPENERS[name], call)
    with pytest.raises(InvalidType, match="client is 5: give the client of"):
        async with getattr(mqd.client, name)(5, **OPENERS[name]):
            pass


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_functions(nursery: trio.Nursery, autojump_clock: trio.abc.Clock, name: str) -> None:
    async with fake_client(nursery) as client:

        async def call(**arguments: Any) -> None:
            result = getattr(mqd.client, name)(client, **arguments)
            if inspect.isawaitable(result):
                await result
            else:
                async for _ in result:
                    pass

        await check_each(name, FUNCTIONS[name], call)


@pytest.mark.parametrize(
    ("argument", "junk"),
    [
        *(("bootstrap", junk) for junk in (5, "", [], [5], [("h", 99_999)], [("", 1)], "h:x")),
        *(("client_id", junk) for junk in (5, "", "\ud800", "x" * 40_000)),
        *(("request_timeout_s", junk) for junk in ("x", 0, -7, float("nan"))),
        *(("connect_timeout_s", junk) for junk in ("x", 0)),
        *(("wait_s", junk) for junk in ("x", -7)),
    ],
)
async def test_connect(nursery: trio.Nursery, argument: str, junk: object) -> None:
    fits: Arguments = {"bootstrap": [("fake", 9001)], "network": FakeCluster(nursery)}
    with pytest.raises((InvalidType, InvalidValue)) as caught:
        async with connect(**fits | {argument: junk}):
            pass
    assert caught.value.remedy


async def check_methods(opened: Any, kind: type) -> None:
    for name, fits in METHODS[kind].items():
        method = getattr(opened, name)

        async def call(method: Any = method, **arguments: Any) -> None:
            is_variadic = inspect.getfullargspec(method).varargs is not None
            result = method(*arguments.values()) if is_variadic else method(**arguments)
            if inspect.isawaitable(result):
                with trio.move_on_after(0.1):
                    await result

        await check_each(f"{kind.__name__}.{name}", fits, call)


async def test_methods_of_producers(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    async with fake_client(nursery) as client:
        async with open_producer(client, delivery_timeout_s=1.0) as producer:
            await check_methods(producer, Producer)
        async with open_transactional_producer(client, "t", timeout_s=1.0) as copier:
            await copier.begin()
            await check_methods(copier, TransactionalProducer)
            await copier.abort()
        async with open_raw_producer(client, transactional_id="u", timeout_s=1.0) as raw:
            await raw.begin()
            await check_methods(raw, RawProducer)
            await raw.abort()


async def test_methods_of_consumers(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    async with fake_client(nursery) as client:
        async with open_consumer(client, {A0: "earliest"}) as consumer:
            await check_methods(consumer, Consumer)
        async with open_group_consumer(client, "g", ["a"], timeout_s=1.0) as member:
            with trio.move_on_after(1):
                await member.next()
            assert member.assignment() == [A0]
            await check_methods(member, GroupConsumer)
        async with open_share_consumer(client, "s", ["a"], timeout_s=1.0) as sharing:
            await check_methods(sharing, ShareConsumer)


SENTENCES: list[tuple[str, Arguments, str]] = [
    ("create_topic", {"name": "q", "partitions": "x"}, "partitions of 'q' is 'x': give a whole"),
    ("create_topic", {"name": "q", "partitions": 2**40}, "partitions of 'q' is 1099511627776: "),
    ("create_topic", {"name": "q", "partitions": 0}, "give a whole number from 1 to 2147483647"),
    ("create_topic", {"name": "a b"}, "Topic name is invalid: 'a b' contains one or more char"),
    ("create_topic", {"name": "q", "configs": {"a": [1]}}, "a is [1]: give a str, an int,"),
    ("add_partitions", {"totals": {"rr": "9"}}, "the number of partitions of 'rr' is '9': give"),
    ("delete_topic", {"name": 5}, "name is 5: give a str, for example 'orders'"),
    ("delete_topics", {"names": "rr"}, "names is 'rr': give a list: ['rr']"),
    ("create_topics", {"topics": [5]}, "one of topics is 5: give a NewTopic"),
    ("create_topics", {"topics": NewTopic("x")}, "topics is one NewTopic: give a list"),
    ("alter_configs", {"changes": {"rr": {}}}, "a key of changes is 'rr': give a Resource"),
    ("alter_configs", {"changes": {TOPIC_A: [("a", "b")]}}, "a change of 'a' is ('a', 'b'): give"),
    ("list_offsets", {"specs": {A0: "begining"}}, "specs of a-0 is 'begining': give millisec"),
    ("delete_records", {"before": {A0: "beginning"}}, "before of a-0 is 'beginning': give the"),
    ("delete_records", {"before": {A0: -5}}, "before of a-0 is -5: give the first offset to keep"),
    ("describe_groups", {"group_ids": "gg"}, "group_ids is 'gg': give a list: ['gg']"),
    ("elect_leaders", {"kind": 7}, "kind is 7: choose one of ElectionType.PREFERRED, "),
]


@pytest.mark.parametrize(("name", "arguments", "sentence"), SENTENCES)
async def test_sentences_of_admin(
    nursery: trio.Nursery, name: str, arguments: Arguments, sentence: str
) -> None:
    async with fake_client(nursery) as client:
        with pytest.raises((InvalidType, InvalidValue)) as caught:
            await getattr(Admin(client), name)(**arguments)
    assert sentence in str(caught.value)


OPENED: list[tuple[Callable[[ClusterClient], Any], str]] = [
    (lambda c: open_consumer(c, {A0: "end"}, end="nope"), "end is 'nope': give 'end', or"),  # type: ignore[arg-type]
    (lambda c: open_consumer(c, {A0: 0}, end={Z0: 1}), "Topic name is invalid: 'a b' contains"),
    (
        lambda c: open_consumer(c, {A0: 0}, end={TopicPartition("a", 1): 1}),
        "end names a-1, which start does not: name it in both",
    ),
    (lambda c: open_range(c, "rr", 0, 3), "tp is 'rr': give a TopicPartition"),  # type: ignore[arg-type]
    (lambda c: open_group_consumer(c, "x" * 70_000, ["a"]), "group_id has 70000 bytes: give at m"),
    (lambda c: open_group_consumer(c, "g", ["a b"]), "Topic name is invalid: 'a b' contains one"),
    (lambda c: open_transactional_producer(c, "x" * 4097), "transactional_id has 4097 bytes: give"),
    (lambda c: open_raw_producer(c, transactional_id="x" * 4097), "transactional_id has 4097 by"),
]


@pytest.mark.parametrize(("opening", "sentence"), OPENED)
async def test_sentences_of_openers(
    nursery: trio.Nursery, opening: Callable[[ClusterClient], Any], sentence: str
) -> None:
    async with fake_client(nursery) as client:
        with pytest.raises((InvalidType, InvalidValue)) as caught:
            async with opening(client):
                pass
    assert sentence in str(caught.value)


async def test_a_wrong_partition_of_a_record_is_a_value_error(nursery: trio.Nursery) -> None:
    async with fake_client(nursery) as client, open_producer(client) as producer:
        with pytest.raises(ValueError, match="the partition of a record is -2: give an int from 0"):
            await producer.send("a", b"v", partition=-2)


async def test_offsets_to_commit(nursery: trio.Nursery, autojump_clock: trio.abc.Clock) -> None:
    async with fake_client(nursery) as client, open_group_consumer(client, "g", ["a"]) as member:
        with trio.move_on_after(1):
            await member.next()
        with pytest.raises(ValueError, match=f"{2**63} is no offset of a-0 to commit: commit the"):
            await member.commit({A0: 2**63})
        with pytest.raises(TypeError, match=r"offsets is \[3\]: give a dict, for example"):
            await member.commit([3])  # type: ignore[arg-type]


WORDS_AND_OFFSETS: list[tuple[Place, int]] = [
    ("beginning", 0),
    ("earliest", 0),
    ("end", 1),
    ("latest", 1),
]


async def test_words_for_the_ends_of_a_log(nursery: trio.Nursery) -> None:
    async with fake_client(nursery) as client:
        admin = Admin(client)
        async with open_producer(client) as producer:
            await producer.send("a", b"v", partition=0)
        for word, offset in WORDS_AND_OFFSETS:
            listed = (await admin.list_offsets({A0: word}))[A0]
            assert not isinstance(listed, ClientError) and listed.offset == offset
            assert await resolve_offsets(client, {A0: word}) == {A0: offset}
        async with open_consumer(client, {A0: "earliest"}, end="latest") as consumer:
            assert [len(batch.records) async for batch in consumer] == [1]
        assert await admin.delete_records({A0: "end"}) == {A0: 1}


async def test_configuration_values_are_sent_as_kafkas_text(nursery: trio.Nursery) -> None:
    async with fake_client(nursery) as client:
        configs = {"retention.ms": 1000, "min.cleanable.dirty.ratio": 0.5, "preallocate": False}
        await Admin(client).create_topic("n", configs=configs)
        changes = [ConfigChange("unclean.leader.election.enable", ConfigOperation.SET, True)]
        resource = Resource(ResourceType.TOPIC, "n")
        await Admin(client).alter_configs({resource: changes})
        entries = (await Admin(client).describe_configs([resource]))[resource]
    assert not isinstance(entries, ClientError)
    assert {entry.name: entry.value for entry in entries}.items() >= {
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "false",
        "retention.ms": "1000",
        "unclean.leader.election.enable": "true",
    }.items()


async def test_a_client_whose_block_has_ended(nursery: trio.Nursery) -> None:
    async with fake_client(nursery) as client:
        pass
    for call in (
        lambda: Admin(client).list_topics(),
        lambda: Admin(client).describe_log_dirs([1]),
        lambda: resolve_offsets(client, {A0: "end"}),
        lambda: end_transaction(client, "t", 1, 0, True),
    ):
        with pytest.raises(ClientClosed, match="the client is closed: its block has ended"):
            await call()
    with pytest.raises(ClientClosed):
        async with open_producer(client) as producer:
            await producer.send("a", b"v")


def test_admin_needs_a_client() -> None:
    with pytest.raises(TypeError, match="client is 5: give the client of"):
        Admin(5)  # type: ignore[arg-type]


WITH_OPTIONS: dict[str, Callable[..., object]] = {
    "connect": connect,
    "open_arrow_producer": mqd.client.open_arrow_producer,
    "open_consumer": open_consumer,
    "open_group_consumer": open_group_consumer,
    "open_producer": open_producer,
    "open_range": open_range,
    "open_raw_producer": open_raw_producer,
    "open_share_consumer": open_share_consumer,
    "open_transactional_producer": open_transactional_producer,
}


@pytest.mark.parametrize(
    ("name", "option", "sentence"),
    [
        ("open_producer", "lingr_ms", "Did you mean 'linger_ms'?"),
        ("open_transactional_producer", "timeout", "Did you mean 'timeout_s'?"),
        ("open_group_consumer", "instance", "Did you mean 'instance_id'?"),
        ("open_consumer", "reads_committed", "Did you mean 'read_committed'?"),
        ("open_range", "bytes", "Did you mean 'bytes_max'?"),
        ("open_raw_producer", "twophase", "Did you mean 'two_phase'?"),
        ("open_arrow_producer", "delivery_timeout", "Did you mean 'delivery_timeout_s'?"),
        ("connect", "clientid", "Did you mean 'client_id'?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_most_similar_name(
    name: str, option: str, sentence: str
) -> None:
    with pytest.raises(TypeError) as caught:
        WITH_OPTIONS[name](None, **{option: 1})
    assert isinstance(caught.value, InvalidType)
    assert str(caught.value) == f"{option!r} is not an option of {name}. {sentence}"


def test_every_function_with_options_checks_their_names() -> None:
    functions = {name for name in mqd.client.__all__ if name.startswith("open_")} | {"connect"}
    assert functions == set(WITH_OPTIONS)
    for name, function in WITH_OPTIONS.items():
        with pytest.raises(InvalidType, match=f"^'xyzzy' is not an option of {name}: choose from"):
            function(None, xyzzy=1)


def test_the_client_without_trio_checks_the_names_of_options() -> None:
    with pytest.raises(InvalidType, match=r"of connect\. Did you mean 'timeout_s'\?"):
        sync.connect("127.0.0.1:1", timeout=1)

"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: requests and responses of every
version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mqd.config import NODE_OPTIONS, TOPIC_OPTIONS
from mqd.limits import CONFIG_KEY_CHARS_MAX
from mqd.server.handlers import describe_configs
from tests.server.handlers.node import FakeNode, running_node

TOPIC, NODE, LOGGER = 2, 4, 8
SET, DELETE, APPEND, SUBTRACT = range(4)


async def describe(
    node: FakeNode,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    version: int = 4,
    **rest: Any,
) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    (row,) = (await node.request("describe_configs", version, resources=[resource], **rest)).results
    return row


async def alter(
    node: FakeNode, kind: int, name: str, *changes: tuple[str, int, str | None], **rest: Any
) -> int:
    rows = [
        {"name": key, "config_operation": operation, "value": value}
        for key, operation, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    (row,) = (
        await node.request("incremental_alter_configs", 1, resources=[resource], **rest)
    ).responses
    assert (row.resource_type, row.resource_name) == (kind, name)
    assert (row.error_message is None) == (row.error_code == 0)
    return int(row.error_code)


async def test_named_keys_are_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other keys are not even built."""
    built: list[str] = []
    build = describe_configs._row

    def note(key: str, *args: Any, **options: Any) -> Any:
        built.append(key)
        return build(key, *args, **options)

    monkeypatch.setattr(describe_configs, "_row", note)
    async with running_node() as node:
        keys = ["message.max.bytes", "", "x" * 30_000, "log.retention.ms", "message.max.bytes"]
        row = await describe(node, NODE, "1", keys)
        assert [config.name for config in row.configs] == ["log.retention.ms", "message.max.bytes"]
        for none in ([""], ["x" * 30_000]):
            assert (await describe(node, NODE, "1", none)).configs == []
    assert built == ["log.retention.ms", "message.max.bytes"]


def test_the_number_and_size_of_requested_keys_do_not_matter() -> None:
    """Each key of the node is looked up once. Keys that are too long are not hashed."""
    keys = [Key("a"), *map(Key, ["b"] * 3900), Key("x" * (CONFIG_KEY_CHARS_MAX + 1))]
    assert describe_configs._wanted(keys) == frozenset("ab")
    assert keys[-1].hashes == 0 and sum(key.hashes for key in keys) == 3901
    assert describe_configs._wanted(None) is None and describe_configs._wanted([]) is None


class Key(str):
    """Counts how often it is hashed."""

    hashes = 0

    def __hash__(self) -> int:
        self.hashes += 1
        return super().__hash__()


async def test_every_key_is_listed() -> None:
    async with running_node() as node:
        await node.create("t")
        both: tuple[list[str] | None, ...] = (None, [])
        for keys in both:
            assert {row.name for row in (await describe(node, TOPIC, "t", keys)).configs} == set(
                TOPIC_OPTIONS
            )
            assert {row.name for row in (await describe(node, NODE, "1", keys)).configs} == set(
                NODE_OPTIONS
            )
        assert [
            row.name for row in (await describe(node, TOPIC, "t", ["nope", "retention.ms"])).configs
        ] == ["retention.ms"]
        assert list((await describe(node, NODE, "")).configs) == []


@pytest.mark.parametrize("version", range(1, 5))
async def test_sources_synonyms_types_and_documentation(version: int) -> None:
    async with running_node(log_segment_bytes="3000000") as node:
        await node.create("t", retention_ms="77")
        fields: dict[str, Any] = {"include_synonyms": True}
        if version >= 3:
            fields["include_documentation"] = True
        response = await describe(node, TOPIC, "t", version=version, **fields)
        assert (response.error_code, response.error_message) == (0, "")
        rows = {row.name: row for row in response.configs}
        retention, segment = rows["retention.ms"], rows["segment.bytes"]
        assert (
            retention.value,
            retention.config_source,
            retention.read_only,
            retention.is_sensitive,
        ) == ("77", 1, False, False)
        assert tuple(retention.synonyms[0].values())[:3] == ("retention.ms", "77", 1)
        assert [(s.name, s.value, s.source) for s in segment.synonyms] == [
            ("log.segment.bytes", "3000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        if version >= 3:
            assert (
                retention.config_type,
                segment.config_type,
                rows["cleanup.policy"].config_type,
            ) == (5, 3, 7)
            assert retention.documentation
            plain = (await describe(node, TOPIC, "t", ["retention.ms"], version=version)).configs[0]
            assert plain.documentation is None and list(plain.synonyms) == []


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nonesuch", 3),
        (TOPIC, "a/b", 17),
        (TOPIC, "", 17),
        (0, "x", 42),
        (99, "x", 42),
        (NODE, "2", 42),
        (NODE, "x", 42),
        (NODE, "-1", 42),
        (LOGGER, "2", 42),
        (LOGGER, "", 42),
    ],
)
async def test_invalid_resources(kind: int, name: str, code: int) -> None:
    async with running_node() as node:
        response = await describe(node, kind, name)
        assert (
            response.error_code,
            response.resource_type,
            response.resource_name,
            list(response.configs),
        ) == (code, kind, name, [])


async def test_the_configuration_of_a_node_has_values_and_sources() -> None:
    async with running_node(num_partitions="3") as node:
        rows = {
            row.name: row
            for row in (await describe(node, NODE, "1", include_synonyms=True)).configs
        }
        assert (
            rows["num.partitions"].value,
            rows["num.partitions"].config_source,
            rows["num.partitions"].read_only,
        ) == ("3", 4, True)
        assert [s.source for s in rows["num.partitions"].synonyms] == [4, 5]
        assert (rows["log.retention.hours"].value, rows["log.retention.hours"].config_source) == (
            "168",
            5,
        )
        for row in rows.values():
            if NODE_OPTIONS[row.name].sensitive:
                assert (
                    row.is_sensitive
                    and row.value is None
                    and all(s.value is None for s in row.synonyms)
                )


async def test_dynamic_options_of_one_node_and_of_all() -> None:
    async with running_node() as node:
        await node.create("t")
        assert await alter(node, NODE, "", ("log.retention.ms", SET, "6000")) == 0
        row = (
            await describe(node, NODE, "1", ["log.retention.ms"], include_synonyms=True)
        ).configs[0]
        assert (row.value, row.config_source) == ("6000", 3)
        assert await alter(node, NODE, "1", ("log.retention.ms", SET, "5000")) == 0
        row = (
            await describe(node, NODE, "1", ["log.retention.ms"], include_synonyms=True)
        ).configs[0]
        assert (row.value, row.config_source, row.read_only) == ("5000", 2, False)
        assert [(s.name, s.value, s.source) for s in row.synonyms] == [
            ("log.retention.ms", "5000", 2),
            ("log.retention.ms", "6000", 3),
            ("log.retention.hours", "168", 5),
        ]
        assert [
            (row.name, row.value, row.config_source)
            for row in (await describe(node, NODE, "")).configs
        ] == [("log.retention.ms", "6000", 3)]
        topic = (await describe(node, TOPIC, "t", ["retention.ms"], include_synonyms=True)).configs[
            0
        ]
        assert (topic.value, topic.config_source) == ("5000", 2)
        assert await alter(node, NODE, "1", ("log.retention.ms", DELETE, None)) == 0
        assert (await describe(node, NODE, "1", ["log.retention.ms"])).configs[0].value == "6000"
        assert await alter(node, NODE, "1", ("log.dirs", SET, "/x")) == 42


BOUNDS = (
    "connections.max.idle.ms",
    "connections.max.write.stall.ms",
    "fetch.max.bytes",
    "group.coordinator.memory.bytes",
    "group.members.memory.bytes",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.io.buffer.size",
    "max.connections",
    "max.connections.per.ip",
    "max.incremental.fetch.session.cache.slots",
    "memory.budget.bytes",
    "metadata.image.max.bytes",
    "producer.state.memory.bytes",
    "socket.request.max.bytes",
    "transaction.coordinator.memory.bytes",
)


async def test_clients_cannot_change_the_bounds_that_protect_a_node() -> None:
    async with running_node() as node:
        for key in BOUNDS:
            for name in ("", "1"):
                assert await alter(node, NODE, name, (key, SET, "10000000")) == 42, key
        rows = (await describe(node, NODE, "1", list(BOUNDS))).configs
        assert [row.name for row in rows] == list(BOUNDS) and all(
            row.read_only and row.config_source != 2 for row in rows
        )


async def test_node_bounds_of_an_earlier_version_are_ignored_and_deletable() -> None:
    async with running_node() as node:
        for name in ("", "1"):
            node.image.configs["node", name] = {"log.retention.ms": "5000", "max.connections": "0"}
        (row,) = (
            await describe(node, NODE, "1", ["max.connections"], include_synonyms=True)
        ).configs
        assert (row.value, row.config_source, row.read_only) == ("1000", 5, True)
        assert [(one.value, one.source) for one in row.synonyms] == [("1000", 5)]
        assert (await describe(node, NODE, "1", ["log.retention.ms"])).configs[0].value == "5000"
        rows = (await describe(node, NODE, "")).configs
        assert [(row.name, row.value, row.read_only) for row in rows] == [
            ("log.retention.ms", "5000", False),
            ("max.connections", "0", True),
        ]
        assert (
            await alter(node, NODE, "", ("log.retention.ms", SET, "6000"), validate_only=True) == 0
        ), "despite the other one"
        assert (
            await alter(node, NODE, "", ("max.connections", DELETE, None), validate_only=True) == 0
        )


async def test_synonyms_are_in_order_of_precedence() -> None:
    options = {
        "log_retention_hours": "5",
        "log_retention_minutes": "7",
        "log_segment_bytes": "3000000",
    }
    started = [
        ("log.retention.minutes", "7", 4),
        ("log.retention.hours", "5", 4),
        ("log.retention.hours", "168", 5),
    ]

    async with running_node(**options) as node:

        async def synonyms(name: str, key: str, kind: int = TOPIC) -> list[tuple[str, str, int]]:
            (row,) = (await describe(node, kind, name, [key], include_synonyms=True)).configs
            return [(one.name, one.value, one.source) for one in row.synonyms]

        await node.create("t", segment_bytes="2000000")
        assert await synonyms("t", "retention.ms") == [], (
            "the first node key has no value, and the list starts with it"
        )
        assert (await describe(node, TOPIC, "t", ["retention.ms"])).configs[0].value == str(
            7 * 60_000
        )
        assert await synonyms("1", "log.retention.minutes", NODE) == started
        assert await synonyms("1", "log.retention.hours", NODE) == started[1:]
        segments = [("", "4000000"), ("1", "5000000")]
        for name, key, value in (
            *((name, "log.segment.bytes", value) for name, value in segments),
            ("", "log.retention.ms", "6000"),
        ):
            assert await alter(node, NODE, name, (key, SET, value)) == 0
        assert await synonyms("t", "retention.ms") == [("log.retention.ms", "6000", 3), *started]
        assert await synonyms("t", "segment.bytes") == [
            ("segment.bytes", "2000000", 1),
            ("log.segment.bytes", "5000000", 2),
            ("log.segment.bytes", "4000000", 3),
            ("log.segment.bytes", "3000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]


async def test_a_resource_named_twice_has_two_rows() -> None:
    async with running_node() as node:
        await node.create("t")
        resources = [
            {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": [key]}
            for key in ("retention.ms", "segment.bytes", "retention.ms")
        ]
        results = (await node.request("describe_configs", 4, resources=resources)).results
        assert [[row.name for row in result.configs] for result in results] == [
            ["retention.ms"],
            ["segment.bytes"],
            ["retention.ms"],
        ]
        results = (await node.request("describe_configs", 4, resources=resources[:1] * 12)).results
        assert [result.error_code for result in results] == [0] * 10 + [42] * 2


async def test_keys_without_effect_are_marked_where_they_are_set(
    caplog: pytest.LogCaptureFixture,
) -> None:
    note = "Accepted without effect: preallocate (segments grow with each write)."

    async def changed(
        node: FakeNode, kind: int, name: str, *changes: tuple[str, str]
    ) -> tuple[int, str | None]:
        configs = [{"name": key, "config_operation": SET, "value": value} for key, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        (row,) = (
            await node.request("incremental_alter_configs", 1, resources=[resource])
        ).responses
        return row.error_code, row.error_message

    async with running_node() as node:
        for name, value, message in (("t", "true", note), ("u", "false", None)):
            topic = {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "configs": [{"name": "preallocate", "value": value}],
            }
            (row,) = (await node.request("create_topics", 7, topics=[topic])).topics
            assert (row.error_code, row.error_message) == (0, message)
        assert await changed(
            node, TOPIC, "t", ("retention.ms", "5"), ("compression.type", "zstd")
        ) == (0, None)
        assert await changed(node, TOPIC, "t", ("compression.zstd.level", "22")) == (
            0,
            "Accepted with less effect: compression.zstd.level (22 acts as 9).",
        )
        assert await changed(node, TOPIC, "t", ("compression.zstd.level", "9")) == (0, None)
        assert await changed(node, TOPIC, "u", ("preallocate", "true"), ("retention.ms", "5")) == (
            0,
            note,
        )
        code, message = await changed(
            node, NODE, "", ("num.io.threads", "7"), ("log.retention.ms", "9")
        )
        assert (
            code == 0
            and message is not None
            and message.startswith("Accepted without effect: num.io.threads (one event loop")
        )
        assert [
            line.split(" message=")[0] for line in caplog.messages if "without effect" in line
        ] == [
            "configuration keys without effect topic=t",
            "configuration keys without effect topic=t",
            "configuration keys without effect topic=u",
            "configuration keys without effect broker=all",
        ]
        rows = {
            row.name: row
            for row in (await describe(node, TOPIC, "t", include_documentation=True)).configs
        }
        assert rows["preallocate"].value == "true"
        assert rows["preallocate"].documentation.startswith(
            "Ignored by mqd: segments grow with each write. Preallocate the file"
        )
        assert not rows["compression.type"].documentation.startswith("Ignored")


async def test_incremental_changes() -> None:
    async with running_node() as node:
        await node.create("t")
        assert (
            await alter(
                node, TOPIC, "t", ("cleanup.policy", APPEND, "compact"), ("retention.ms", SET, "9")
            )
            == 0
        )
        rows = {
            row.name: row.value
            for row in (
                await describe(node, TOPIC, "t", ["cleanup.policy", "retention.ms"])
            ).configs
        }
        assert rows == {"cleanup.policy": "delete,compact", "retention.ms": "9"}
        assert await alter(node, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) == 0
        assert await alter(node, TOPIC, "t", ("retention.ms", SET, "8"), validate_only=True) == 0
        assert node.image.topic_configs("t") == {"cleanup.policy": "compact", "retention.ms": "9"}
        assert await alter(node, TOPIC, "t", ("nope", SET, "8")) == 40
        assert await alter(node, TOPIC, "zz", ("retention.ms", SET, "8")) == 3


async def test_mixed_and_repeated_resources() -> None:
    async with running_node() as node:
        await node.create("t", "u")
        change = [{"name": "retention.ms", "config_operation": SET, "value": "9"}]
        resources = [
            {"resource_type": TOPIC, "resource_name": name, "configs": change}
            for name in ("t", "t", "u", "zz")
        ]
        for version in (0, 1):
            response = await node.request("incremental_alter_configs", version, resources=resources)
            assert [(row.resource_name, row.error_code) for row in response.responses] == [
                ("t", 42),
                ("t", 42),
                ("u", 0),
                ("zz", 3),
            ]
        assert (await node.request("incremental_alter_configs", 1, resources=[])).responses == []


@pytest.mark.parametrize("version", range(3))
async def test_a_legacy_change_replaces_everything(version: int) -> None:
    async with running_node() as node:
        await node.create("t", retention_ms="5", segment_bytes="2000000")
        configs = [{"name": "retention.ms", "value": "7"}]
        rows = [
            {"resource_type": TOPIC, "resource_name": name, "configs": configs}
            for name in ("t", "zz")
        ]
        response = await node.request(
            "alter_configs",
            version,
            resources=[*rows, {"resource_type": LOGGER, "resource_name": "1", "configs": []}],
        )
        assert [row.error_code for row in response.responses] == [0, 3, 42]
        assert node.image.topic_configs("t") == {"retention.ms": "7"}


@pytest.fixture
def a_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("mqd.tests.handlers")
    yield logger
    logger.setLevel(logging.NOTSET)


async def test_loggers(a_logger: logging.Logger) -> None:
    async with running_node() as node:
        levels = {row.name: row.value for row in (await describe(node, LOGGER, "1")).configs}
        assert "root" in levels and a_logger.name in levels
        assert (
            await alter(node, LOGGER, "1", (a_logger.name, SET, "DEBUG"), validate_only=True) == 0
        )
        assert a_logger.level == logging.NOTSET
        assert await alter(node, LOGGER, "1", (a_logger.name, SET, "WARN")) == 0
        (row,) = (await describe(node, LOGGER, "1", [a_logger.name])).configs
        assert (row.value, row.config_source) == ("WARN", 6)
        assert await alter(node, LOGGER, "1", (a_logger.name, DELETE, None)) == 0
        assert a_logger.level == logging.NOTSET
        for name, change, code in (
            ("1", ("no.such.logger", SET, "DEBUG"), 40),
            ("1", (a_logger.name, SET, "zap"), 40),
            ("1", (a_logger.name, SET, None), 42),
            ("1", (a_logger.name, APPEND, "DEBUG"), 42),
            ("1", ("root", DELETE, None), 42),
            ("2", (a_logger.name, SET, "DEBUG"), 42),
        ):
            assert await alter(node, LOGGER, name, change) == code


@pytest.mark.parametrize("level", ["ERROR", "FATAL"])
async def test_no_client_disables_warnings(a_logger: logging.Logger, level: str) -> None:
    async with running_node() as node:
        for name in ("root", a_logger.name):
            assert await alter(node, LOGGER, "1", (name, SET, level)) == 40
        assert a_logger.level == logging.NOTSET


async def test_loggers_beside_topics_in_one_request(a_logger: logging.Logger) -> None:
    async with running_node() as node:
        await node.create("t")
        resources = [
            {
                "resource_type": TOPIC,
                "resource_name": "t",
                "configs": [{"name": "retention.ms", "config_operation": SET, "value": "9"}],
            },
            {
                "resource_type": LOGGER,
                "resource_name": "1",
                "configs": [{"name": a_logger.name, "config_operation": SET, "value": "INFO"}],
            },
        ]
        response = await node.request("incremental_alter_configs", 1, resources=resources)
        assert {(row.resource_type, row.error_code) for row in response.responses} == {
            (TOPIC, 0),
            (LOGGER, 0),
        }
        assert a_logger.level == logging.INFO and node.image.topic_configs("t") == {
            "retention.ms": "9"
        }
        response = await node.request(
            "incremental_alter_configs", 1, resources=[resources[1], resources[1]]
        )
        assert [row.error_code for row in response.responses] == [42, 42]

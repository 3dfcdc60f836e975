"""What `mqd-spark doctor` concludes from its observations. Pure: observations in, findings out.

A finding that has failed names its remedy. A missing feature that was not requested (such as
another delivery guarantee) is a note, and does not make the exit code 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

OK, NOTE, WARNING, FAILED = "ok", "note", "warning", "failed"

PYTHON_MIN = (3, 11)
SPARK_MIN, SPARK_BEFORE = (4, 2), (4, 4)
NEEDED = {"pyspark": SPARK_MIN, "pyarrow": (17,), "numpy": (1, 26)}
MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
MAX_BYTES_WANTED = 2**31 - 1
STATELESS_AQE = "spark.sql.adaptive.streaming.stateless.enabled"
FEATURE = "transaction.version"
RETENTION_MS_MIN = 3_600_000
MARKER_MINUTES_MIN = 1_440

GUARANTEES = ("at-least-once", "exactly-once", "atomic-batch")
PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_FETCH, INIT_PRODUCER_ID = 0, 1, 2, 3, 9, 22
ADD_OFFSETS_TO_TXN, END_TXN, TXN_OFFSET_COMMIT = 25, 26, 28
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
READING = {FETCH: 4, LIST_OFFSETS: 2, METADATA: 1}
"""API -> the lowest version that a broker must serve; 2 of ListOffsets knows the last
stable offset.
"""
WRITING = {
    "at-least-once": {PRODUCE: 3, INIT_PRODUCER_ID: 0},
    "exactly-once": {
        PRODUCE: 3,
        INIT_PRODUCER_ID: 3,
        ADD_OFFSETS_TO_TXN: 0,
        TXN_OFFSET_COMMIT: 3,
        OFFSET_FETCH: 7,
        END_TXN: 0,
    },
    "atomic-batch": {
        PRODUCE: 3,
        INIT_PRODUCER_ID: 6,
        TXN_OFFSET_COMMIT: 3,
        OFFSET_FETCH: 7,
        END_TXN: 0,
        DESCRIBE_TRANSACTIONS: 0,
        LIST_TRANSACTIONS: 0,
    },
}
NAMES = {
    PRODUCE: "Produce",
    FETCH: "Fetch",
    LIST_OFFSETS: "ListOffsets",
    METADATA: "Metadata",
    OFFSET_FETCH: "OffsetFetch",
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_OFFSETS_TO_TXN: "AddOffsetsToTxn",
    END_TXN: "EndTxn",
    TXN_OFFSET_COMMIT: "TxnOffsetCommit",
    DESCRIBE_TRANSACTIONS: "DescribeTransactions",
    LIST_TRANSACTIONS: "ListTransactions",
}


class Finding(NamedTuple):
    """One line of the report. `remedy` is empty where nothing needs to be done."""

    check: str
    state: str
    what: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker. `error` is the reason why it does not respond; then the rest is empty."""

    node_id: int
    address: str
    error: str = ""
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that a query will use. `error` is the reason why nothing is known of it."""

    name: str
    error: str = ""
    partitions: int = 0
    leaderless: int = 0
    isr_min: int = 0
    """The fewest in-sync replicas of a partition."""
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Local:
    """This machine. `java` is a description, or empty with `java_error`."""

    python: tuple[int, ...]
    versions: Mapping[str, str | None]
    java: str
    java_error: str = ""
    confs: Mapping[str, str] = field(default_factory=dict)
    worker_python: str = ""
    """PYSPARK_PYTHON, where it is another one than ours."""
    worker_version: tuple[int, ...] | None = None
    worker_has_package: bool = False


def local_findings(seen: Local) -> Iterator[Finding]:
    """Java, versions of Python and of packages, and settings of Spark."""
    if seen.java:
        yield Finding("java", OK, seen.java)
    else:
        what, _, remedy = seen.java_error.partition(" Install ")
        yield Finding("java", FAILED, what, f"Install {remedy}" if remedy else "Install Java 17.")
    python = _dotted(seen.python)
    if seen.python < PYTHON_MIN:
        yield Finding("python", FAILED, f"Python {python} is too old.", "Install Python 3.11.")
    else:
        yield Finding("python", OK, f"Python {python}")
    for package, least in NEEDED.items():
        yield _package(package, seen.versions.get(package), least)
    pandas = seen.versions.get("pandas")
    if pandas is not None and _numbers(pandas) >= (3,):
        yield Finding(
            "pandas",
            NOTE,
            f"pandas {pandas} is newer than PySpark supports; the connector does not need it.",
            "For pandas functions of PySpark: pip install 'pandas<3'.",
        )
    yield from _worker(seen)
    yield from _confs(seen.confs)


def _package(name: str, version: str | None, least: tuple[int, ...]) -> Finding:
    install = "Run: pip install 'mqd[spark]'."
    if version is None:
        return Finding(name, FAILED, f"'{name}' is not installed.", install)
    if _numbers(version) < least:
        return Finding(
            name, FAILED, f"{name} {version} is too old: {_dotted(least)} is needed.", install
        )
    if name == "pyspark" and _numbers(version) >= SPARK_BEFORE:
        return Finding(
            name, WARNING, f"pyspark {version} is newer than what the connector is tested with."
        )
    return Finding(name, OK, f"{name} {version}")


def _worker(seen: Local) -> Iterator[Finding]:
    if not seen.worker_python:
        return
    which = f"PYSPARK_PYTHON is '{seen.worker_python}'"
    if seen.worker_version is None:
        yield Finding(
            "workers", FAILED, f"{which}, which does not start.", "Unset it, or correct the path."
        )
    elif seen.worker_version[:2] != seen.python[:2]:
        yield Finding(
            "workers",
            FAILED,
            f"{which}, which is Python {_dotted(seen.worker_version)}; the driver has"
            f" {_dotted(seen.python)}, and Spark refuses different minor versions.",
            "Set PYSPARK_PYTHON to the Python of the driver.",
        )
    elif not seen.worker_has_package:
        yield Finding(
            "workers",
            FAILED,
            f"{which}, where the package 'pyspark_mqd' is missing.",
            f"Run: {seen.worker_python} -m pip install 'mqd[spark]'. Or pass --py-files.",
        )
    else:
        yield Finding("workers", OK, which)


def _confs(confs: Mapping[str, str]) -> Iterator[Finding]:
    value = confs.get(MAX_BYTES)
    remedy = "In your own programs call pyspark_mqd.configure(builder), or set it to 2147483647."
    if value is None:
        what = f"{MAX_BYTES} has Spark's default: sinks are 10 to 30 times slower with it."
        yield Finding("settings", NOTE, f"{what} Commands of mqd-spark set it.", remedy)
    elif value.strip() != str(MAX_BYTES_WANTED):
        what = f"{MAX_BYTES} is {value}: sinks are 10 to 30 times slower than with 2147483647."
        yield Finding("settings", WARNING, what, remedy)
    else:
        yield Finding("settings", OK, f"{MAX_BYTES} is {value}")
    if confs.get(STATELESS_AQE, "").strip().lower() == "true":
        yield Finding(
            "settings",
            WARNING,
            f"{STATELESS_AQE} is true: the delivery guarantee 'exactly-once' needs the same rows"
            " in the same task when a micro-batch runs again.",
            "Set it to false for queries with that guarantee that shuffle.",
        )


# -- brokers


def broker_findings(
    bootstrap: str, bootstrap_error: str, nodes: Iterable[Node], guarantee: str
) -> Iterator[Finding]:
    """Whether every broker can be reached by the address that it advertises, and what it serves."""
    if bootstrap_error:
        yield Finding(
            "brokers",
            FAILED,
            f"No broker answers at '{bootstrap}': {bootstrap_error}",
            "Start the brokers, or name others with --bootstrap.",
        )
        return
    known = sorted(nodes, key=lambda node: node.node_id)
    alive = [node for node in known if not node.error]
    for node in known:
        if node.error:
            yield Finding(
                "brokers",
                FAILED,
                f"Node {node.node_id} advertises '{node.address}', where it does not answer:"
                f" {node.error}",
                "Start the node, or correct the address that it advertises: the driver and every"
                " worker connect to it.",
            )
    if alive:
        addresses = ", ".join(node.address for node in alive)
        yield Finding("brokers", OK, f"{len(alive)} of {len(known)} nodes answer: {addresses}")
        lacking = _lacking(alive, READING)
        if lacking:
            yield Finding(
                "reading", FAILED, f"The source cannot read: {lacking}.", "Update the brokers."
            )
        else:
            yield Finding("reading", OK, "the source can read, also with read_committed")
        for each in GUARANTEES:
            yield _guarantee(each, alive, wanted=each == guarantee)
        yield _feature(alive)


def _guarantee(name: str, nodes: list[Node], *, wanted: bool) -> Finding:
    lacking = _lacking(nodes, WRITING[name])
    if not lacking:
        return Finding(name, OK, f"the sink can write with the delivery guarantee '{name}'")
    what = f"The delivery guarantee '{name}' is not available: {lacking}."
    remedy = "Update the brokers, or choose another delivery guarantee."
    if name == "atomic-batch":
        remedy = (
            "Start every broker with transaction.two.phase.commit.enable=true (on Apache Kafka"
            " also unstable.api.versions.enable=true), or use 'exactly-once'."
        )
    return Finding(name, FAILED if wanted else NOTE, what, remedy)


def _lacking(nodes: list[Node], needed: Mapping[int, int]) -> str:
    """Which node lacks what, in words; empty if none does."""
    missing: dict[str, list[str]] = {}
    for key, least in needed.items():
        for node in nodes:
            served = node.versions.get(key)
            if served is None or served[1] < least:
                missing.setdefault(f"version {least} of {NAMES[key]}", []).append(str(node.node_id))
    return "; ".join(f"node {', '.join(ids)} lacks {what}" for what, ids in missing.items())


def _feature(nodes: list[Node]) -> Finding:
    levels = {node.features.get(FEATURE, 0) for node in nodes}
    level = min(levels)
    if len(levels) > 1:
        return Finding(
            FEATURE, WARNING, f"The nodes disagree on {FEATURE}.", "Look at `mqctl cluster health`."
        )
    if level < 2:
        return Finding(
            FEATURE,
            NOTE,
            f"{FEATURE} is {level}: a late record of one transaction may fall into the next.",
            f"Raise the feature {FEATURE} to 2 when all brokers and clients can.",
        )
    return Finding(FEATURE, OK, f"{FEATURE} is {level}")


def config_findings(configs: Mapping[str, str]) -> Iterator[Finding]:
    """Settings of the brokers that queries with exactly-once sinks depend on."""
    minutes = configs.get("offsets.retention.minutes", "")
    if minutes.isdigit():
        low = int(minutes) < MARKER_MINUTES_MIN
        hours = int(minutes) / 60
        yield Finding(
            "markers",
            WARNING if low else OK,
            f"offsets.retention.minutes is {minutes}: an exactly-once query that is stopped for"
            f" more than {hours:g} hours loses its markers, and then refuses to resume",
            "Raise offsets.retention.minutes on the brokers." if low else "",
        )


def topic_findings(topics: Iterable[Topic], *, writes: bool = False) -> Iterator[Finding]:
    """Whether each topic can be read and written, and what its retention means for a query."""
    for topic in topics:
        check = f"topic {topic.name}"
        if topic.error:
            yield Finding(
                check,
                FAILED,
                f"Topic '{topic.name}' cannot be used: {topic.error}",
                f"Create it with `mqctl topic create {topic.name}`, or correct the name.",
            )
            continue
        if topic.leaderless:
            yield Finding(
                check,
                FAILED,
                f"{topic.leaderless} of {topic.partitions} partitions have no leader.",
                "Start the nodes that hold them: `mqctl partition list --leaderless`.",
            )
        least = _whole(topic.configs.get("min.insync.replicas"))
        if least is not None and not topic.leaderless and topic.isr_min < least:
            yield Finding(
                check,
                FAILED,
                f"A partition has {topic.isr_min} in-sync replicas, and min.insync.replicas is"
                f" {least}: the sink cannot write to it.",
                "Start the nodes that lag: `mqctl cluster health`.",
            )
        retention = _whole(topic.configs.get("retention.ms"))
        if retention is not None and 0 <= retention < RETENTION_MS_MIN and _deletes(topic):
            yield Finding(
                check,
                WARNING,
                f"retention.ms is {retention}: a query that is stopped for longer loses records.",
                "Raise retention.ms, or read with failOnDataLoss=false.",
            )
        if "compact" in topic.configs.get("cleanup.policy", ""):
            yield Finding(
                check,
                NOTE,
                "The topic is compacted: a record without a key cannot be written to it, and gaps"
                " between offsets are not loss.",
            )
        if not topic.leaderless:
            yield Finding(check, OK, f"{topic.partitions} partitions, all with a leader")


def _deletes(topic: Topic) -> bool:
    return "delete" in topic.configs.get("cleanup.policy", "delete")


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _numbers(version: str) -> tuple[int, ...]:
    """`4.3.0.dev1` as (4, 3, 0)."""
    numbers = []
    for part in version.split("."):
        digits = "".join(each for each in part if each.isdigit())
        if not digits or not part[0].isdigit():
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))

"""The audit in Spark: every anomaly that is planted is found, and nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from chaos.history import value_of
from mqd.client.sync import BlockingClient
from mqd.types import TopicPartition
from pyspark_mqd.pipelines.audit import AuditResult, Sources, audit
from pyspark_mqd.pipelines.audit_joins import KINDS, IdRule, parse_rule
from pyspark_mqd.pipelines.cli import Failure

Event = dict[str, Any]
Row = tuple[int, int, str]
"""Partition, offset, id."""


def write_lines(path: Path, rows: Iterable[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def judge(spark: Any, tmp_path: Path) -> Callable[..., AuditResult]:
    """Audit a history against a log, both given as rows."""

    def run(events: list[Event], log: list[Row], **given: Any) -> AuditResult:
        history = write_lines(tmp_path / "history.jsonl", events)
        rows = [
            {"topic": "t", "partition": p, "offset": offset, "id": name} for p, offset, name in log
        ]
        sources = Sources((), IdRule("key"), file=write_lines(tmp_path / "log.jsonl", rows))
        return audit(spark, [history], sources, shown=3, **given)

    return run


def clean(records: int, producers: int = 2, partitions: int = 2) -> tuple[list[Event], list[Row]]:
    """A run in which all went well: every record acknowledged, and in the log once."""
    events, log = [], []
    ends = [0] * partitions
    for turn in range(records):
        producer, partition = turn % producers, turn // producers % partitions
        number = turn // producers // partitions
        name = f"{producer}-{partition}-{number}"
        about = {
            "producer": producer,
            "topic": "t",
            "partition": partition,
            "number": number,
            "id": name,
        }
        events.append({"event": "invoke", **about})
        events.append({"event": "ok", **about, "offset": ends[partition]})
        log.append((partition, ends[partition], name))
        ends[partition] += 1
    return events, log


def found(verdict: AuditResult) -> dict[str, int]:
    return {kind: count for kind, count in verdict.counts.items() if count}


def test_planted_anomalies_are_each_found(judge: Callable[..., AuditResult]) -> None:
    events, log = clean(400)
    by_name = {name: index for index, (_, _, name) in enumerate(log)}
    end = len(log)
    lost, doubled, failed = "0-0-5", "1-1-7", "1-0-20"
    swapped = by_name["0-1-30"], by_name["0-1-31"]
    late, early = log[swapped[0]], log[swapped[1]]
    log[swapped[0]], log[swapped[1]] = (late[0], late[1], early[2]), (early[0], early[1], late[2])
    log.append((1, end, doubled))
    log.append((0, end, "nobody's"))
    log = [row for row in log if row[2] != lost]
    events = [
        {**each, "event": "fail"} if each["id"] == failed and each["event"] == "ok" else each
        for each in events
    ]
    for number, event in enumerate(("info", "invoke", "info")):  # may be there, or not
        events.append(
            {
                "event": event,
                "topic": "t",
                "producer": 0,
                "number": 900 + number,
                "id": f"open{number}",
            }
        )
    log += [(0, end + 1, "open0"), (0, end + 2, "open1")]
    # the log has lost its start by retention
    log = [row for row in log if row[0] == 1 or row[1] >= 3]
    verdict = judge(events, log, starts={TopicPartition("t", 0): 3})
    assert found(verdict) == {
        "lost": 1,
        "doubled": 1,
        "unknown": 1,
        "aborted-visible": 1,
        "reordered": 1,
        "misplaced": 2,  # both of the swapped ones
    }
    named = {(row["kind"], row["id"]) for row in verdict.samples}
    assert named == {
        ("lost", lost),
        ("doubled", doubled),
        ("unknown", "nobody's"),
        ("aborted-visible", failed),
        ("reordered", "0-1-30"),
        ("misplaced", "0-1-30"),
        ("misplaced", "0-1-31"),
    }
    details = {row["kind"]: row["detail"] for row in verdict.samples}
    assert (details["lost"], details["reordered"]) == ("acknowledged at 0:10", "behind number 31")
    assert details["doubled"] == f"2 copies, the last at 1:{end}"


def test_a_damaged_history_is_refused(judge: Callable[..., AuditResult]) -> None:
    events, log = clean(4)
    with pytest.raises(Failure, match="The history has 1 lines that are not events"):
        judge([*events, {"event": "perhaps", "topic": "t", "id": "x"}], log)


def test_it_agrees_with_a_slow_walk_of_random_runs(judge: Callable[..., AuditResult]) -> None:
    dice = random.Random(12)
    events, log = clean(300)
    events = [dice.choice([each, each, each, {**each, "event": "fail"}]) for each in events]
    log = [row for row in log if dice.random() > 0.1]
    offsets = sorted(offset for _, offset, _ in log)
    dice.shuffle(log)
    log = [(partition, offset, name) for (partition, _, name), offset in zip(log, offsets)]
    log += [(partition, 1000 + index, name) for index, (partition, _, name) in enumerate(log[:25])]
    verdict = judge(events, log)
    assert verdict.counts == slow_counts(events, log)
    assert max(Counter(row["kind"] for row in verdict.samples).values()) == 3


def slow_counts(events: list[Event], log: list[Row]) -> dict[str, int]:
    """The same counts by walking through everything."""
    counts = dict.fromkeys(KINDS, 0)
    known: dict[str, list[Event]] = {}
    for each in events:
        known.setdefault(each["id"], []).append(each)
    places: dict[str, list[tuple[int, int]]] = {}
    for partition, offset, name in sorted(log):
        places.setdefault(name, []).append((partition, offset))
    for name, about in known.items():
        kinds = {each["event"] for each in about}
        acked = [(each["partition"], each["offset"]) for each in about if each["event"] == "ok"]
        there = places.get(name, [])
        counts["lost"] += bool(acked) and not there
        counts["aborted-visible"] += not acked and "fail" in kinds and bool(there)
        counts["misplaced"] += bool(acked) and len(there) == 1 and there[0] != acked[0]
    counts["doubled"] = sum(len(there) > 1 for there in places.values())
    counts["unknown"] = sum(name not in known for name in places)
    highest: dict[tuple[int, str], int] = {}
    seen: set[tuple[int, str]] = set()
    for partition, _, name in sorted(log):
        producer, _, number = name.split("-")
        if (partition, name) in seen:
            continue
        seen.add((partition, name))
        before = highest.get((partition, producer), -1)
        counts["reordered"] += int(number) < before
        highest[partition, producer] = max(before, int(number))
    return counts


@pytest.mark.slow
def test_the_log_of_a_cluster_is_read(
    spark: Any,
    client: BlockingClient,
    cluster: Ensemble,
    new_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    """Ids in every place that a rule names; an aborted transaction is not visible to
    read_committed.
    """
    topic = new_topic(2)
    events: list[Event] = []
    with client.producer() as producer:
        for number in range(50):
            value = value_of(3, number).to_bytes(8, "big") + b" padding"
            producer.enqueue(
                topic,
                value,
                key=b"k%d" % number,
                partition=number % 2,
                headers=[("id", b"h%d" % number)],
            )
        producer.flush()
    with client.transactional_producer(f"{topic}-aborter") as aborter:
        aborter.begin()
        aborter.send(topic, b"12345678", key=b"aborted", partition=0)
        aborter.abort()
    names: dict[str, Callable[[int], str]] = {
        "key": lambda number: f"k{number}",
        "int64": lambda number: str(value_of(3, number)),
        "header:id": lambda number: f"h{number}",
    }
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap,
        "kafka.isolation.level": "read_committed",
    }
    for rule, name in names.items():
        events = [{"event": "ok", "topic": topic, "id": name(number)} for number in range(50)]
        history = write_lines(tmp_path / "history.jsonl", events)
        verdict = audit(spark, [history], Sources((topic,), parse_rule(rule), cluster=options))
        assert (rule, found(verdict), verdict.records, verdict.samples) == (rule, {}, 50, [])
    events = [{"event": "ok", "topic": topic, "id": f"k{number}"} for number in range(50)]
    events.append({"event": "fail", "topic": topic, "id": "aborted"})
    history = write_lines(tmp_path / "history.jsonl", events)
    sources = Sources(
        (topic,),
        parse_rule("key"),
        cluster={**options, "kafka.isolation.level": "read_uncommitted"},
    )
    assert found(audit(spark, [history], sources)) == {"aborted-visible": 1}

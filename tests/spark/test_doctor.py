"""What `mqd-spark doctor` concludes, and that it works without Java, without brokers and
without confs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pyspark_mqd.pipelines import doctor, java
from pyspark_mqd.pipelines.doctor_checks import (
    FAILED,
    NOTE,
    OK,
    WARNING,
    Finding,
    Local,
    Node,
    Topic,
    broker_findings,
    config_findings,
    local_findings,
    topic_findings,
)

GOOD = Local(
    (3, 11, 7),
    {"pyspark": "4.3.0", "pyarrow": "26.0.1", "numpy": "2.1.0", "pandas": None},
    "Java 17 from PATH: '/usr/bin/java'",
    confs={"spark.sql.execution.arrow.maxBytesPerBatch": "2147483647"},
)
SERVED = {
    0: (0, 13),
    1: (0, 17),
    2: (0, 9),
    3: (0, 12),
    9: (0, 9),
    22: (0, 6),
    25: (0, 4),
    26: (0, 5),
    28: (0, 5),
}
NODE = Node(1, "a:9092", "", {**SERVED, 65: (0, 0), 66: (0, 2)}, {"transaction.version": 2})
TOPIC = Topic(
    "orders",
    "",
    3,
    0,
    3,
    {"min.insync.replicas": "2", "cleanup.policy": "delete", "retention.ms": "604800000"},
)


def states(findings: Iterable[Finding]) -> dict[str, str]:
    return {each.check: each.state for each in findings}


def only(findings: Iterable[Finding], state: str) -> list[Finding]:
    return [each for each in findings if each.state == state]


def test_a_machine_in_order_has_no_complaint() -> None:
    assert set(states(local_findings(GOOD)).values()) == {OK}


def test_a_missing_java_is_a_failure_with_its_remedy() -> None:
    missing = replace(
        GOOD, java="", java_error=f"Java was not found: JAVA_HOME is not set. {java.INSTALL}"
    )
    (finding,) = only(local_findings(missing), FAILED)
    assert finding.what == "Java was not found: JAVA_HOME is not set."
    assert finding.remedy == java.INSTALL


@pytest.mark.parametrize(
    ("package", "version", "state"),
    [
        ("pyspark", None, FAILED),
        ("pyspark", "4.1.1", FAILED),
        ("pyspark", "4.4.0", WARNING),
        ("pyspark", "4.2.0.dev3", OK),
        ("pyarrow", "16.1.0", FAILED),
        ("numpy", "1.26.4", OK),
        ("pandas", "3.0.0", NOTE),
    ],
)
def test_versions_are_compared_as_numbers(package: str, version: str | None, state: str) -> None:
    seen = replace(GOOD, versions={**GOOD.versions, package: version})
    assert states(local_findings(seen))[package] == state


def test_spark_s_default_for_arrow_batches_is_only_a_note() -> None:
    assert states(local_findings(replace(GOOD, confs={})))["settings"] == NOTE
    slow = {"spark.sql.execution.arrow.maxBytesPerBatch": "67108864"}
    assert states(local_findings(replace(GOOD, confs=slow)))["settings"] == WARNING


@pytest.mark.parametrize(
    ("version", "has_package", "what"),
    [
        (None, False, "does not start"),
        ((3, 12, 1), True, "refuses different minor versions"),
        ((3, 11, 2), False, "'pyspark_mqd' is missing"),
    ],
)
def test_the_python_of_tasks_must_match(
    version: tuple[int, ...] | None, has_package: bool, what: str
) -> None:
    seen = replace(
        GOOD, worker_python="/opt/python", worker_version=version, worker_has_package=has_package
    )
    (finding,) = only(local_findings(seen), FAILED)
    assert what in finding.what
    assert finding.remedy
    fine = replace(
        GOOD, worker_python="/opt/python", worker_version=(3, 11, 2), worker_has_package=True
    )
    assert states(local_findings(fine))["workers"] == OK


def test_brokers_that_serve_everything_pass() -> None:
    found = states(broker_findings("a:9092", "", [NODE], "atomic-batch"))
    assert found == dict.fromkeys(
        [
            "brokers",
            "reading",
            "at-least-once",
            "exactly-once",
            "atomic-batch",
            "transaction.version",
        ],
        OK,
    )


def test_what_was_not_requested_is_a_note() -> None:
    old = replace(NODE, versions={**NODE.versions, 22: (0, 5)})
    nodes = [NODE, replace(old, node_id=2)]
    assert states(broker_findings("a", "", nodes, "exactly-once"))["atomic-batch"] == NOTE
    (finding,) = only(broker_findings("a", "", nodes, "atomic-batch"), FAILED)
    assert "node 2 lacks version 6 of InitProducerId" in finding.what
    assert "transaction.two.phase.commit.enable=true" in finding.remedy


def test_an_api_that_is_not_served_at_all_is_missed() -> None:
    without = replace(NODE, versions={key: value for key, value in SERVED.items() if key != 28})
    (finding,) = only(broker_findings("a", "", [without], "exactly-once"), FAILED)
    assert "node 1 lacks version 3 of TxnOffsetCommit" in finding.what


def test_an_advertised_address_that_does_not_respond_is_named() -> None:
    gone = Node(2, "internal:9092", "the name does not resolve")
    (finding,) = only(broker_findings("a", "", [NODE, gone], "at-least-once"), FAILED)
    assert (
        "Node 2 advertises 'internal:9092', where it does not answer: the name does not resolve"
        in finding.what
    )


@pytest.mark.parametrize(("minutes", "state"), [("10080", OK), ("60", WARNING)])
def test_markers_that_expire_soon_are_a_warning(minutes: str, state: str) -> None:
    assert states(config_findings({"offsets.retention.minutes": minutes})) == {"markers": state}


@pytest.mark.parametrize(
    ("topic", "state", "what"),
    [
        (TOPIC, OK, "3 partitions"),
        (replace(TOPIC, error="it does not exist"), FAILED, "cannot be used: it does not exist"),
        (replace(TOPIC, leaderless=1), FAILED, "1 of 3 partitions have no leader"),
        (replace(TOPIC, isr_min=1), FAILED, "has 1 in-sync replicas, and min.insync.replicas is 2"),
        (
            replace(TOPIC, configs={"retention.ms": "60000"}),
            WARNING,
            "stopped for longer loses records",
        ),
        (
            replace(TOPIC, configs={"cleanup.policy": "compact", "retention.ms": "1"}),
            NOTE,
            "compacted",
        ),
    ],
)
def test_topics_are_checked(topic: Topic, state: str, what: str) -> None:
    found = only(topic_findings([topic]), state)
    assert any(what in each.what for each in found), found


def test_defaults_of_spark_are_read_as_spark_does() -> None:
    text = "# comment\nspark.a  1\nspark.b=2=3\n\n spark.c   x y \n"
    assert doctor.parse_defaults(text) == {"spark.a": "1", "spark.b": "2=3", "spark.c": "x y"}


def test_defaults_are_found_in_the_folder_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.a 1\n")
    assert doctor.defaults_of({"SPARK_CONF_DIR": str(tmp_path)}) == {"spark.a": "1"}
    assert doctor.defaults_of({"SPARK_CONF_DIR": str(tmp_path / "none")}) == {}


def test_without_java_and_without_a_broker_it_reports_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(environ: dict[str, str]) -> java.Runtime:
        raise java.JavaMissing(f"Java was not found. {java.INSTALL}")

    monkeypatch.setattr(java, "find", missing)
    result = CliRunner().invoke(
        doctor.command, ["--bootstrap", "127.0.0.1:1", "-o", "json"], catch_exceptions=False
    )
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["healthy"] is False
    failed = {each["check"]: each["what"] for each in found["findings"] if each["state"] == FAILED}
    assert failed["java"] == "Java was not found."
    assert "nothing listens at 127.0.0.1:1" in failed["brokers"]


def test_remedies_stand_below_what_they_mend(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.show(
        "table",
        [
            Finding("java", OK, "Java 17", "unused"),
            Finding("numpy", FAILED, "It is old.", "Update it."),
        ],
    )
    assert (
        capsys.readouterr().out
        == "ok      java   Java 17\nfailed  numpy  It is old.\n                 -> Update it.\n"
    )

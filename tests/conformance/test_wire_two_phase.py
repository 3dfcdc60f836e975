"""Two-phase commit on the wire (KIP-939): InitProducerId v6, and EndTxn from connections that wrote
nothing.

Apache Kafka 4.3.1 returns the same responses (`make conformance-kafka`) when it is started with
unstable API versions, as here; it returns UNSUPPORTED_VERSION for `keep_prepared_txn`, so that
everything after a preparation is `mqd_only`.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaos.ensemble import Ensemble, ensemble
from mqd.protocol import apis

from .batches import TRANSACTIONAL, Batch, records
from .conftest import GROUP_OPTIONS, Broker, known_everywhere, running
from .test_wire_transactions import (
    FENCED,
    NO_MAPPING,
    NONE,
    OLD_EPOCH,
    SOON,
    WRONG_STATE,
    Transactions,
    Who,
)
from .transactional import read_aiokafka, read_confluent, read_kafka_python
from .wire import Closed, Wire, create_topic, fetch_one, found_coordinator, until

UNSUPPORTED_VERSION, INVALID_TIMEOUT = 35, 50
FOREVER = 2**31 - 1
OPTION = "transaction.two.phase.commit.enable=true"
UNSTABLE = {"mqd": (), "kafka": ("unstable.api.versions.enable=true",)}
NOBODY = Who(-1, -1)


@pytest.fixture(scope="module")
def two_phase_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ensemble]:
    if request.config.getoption("--broker", default=None) is not None:
        pytest.skip("a foreign broker is not started with unstable API versions")
    kind = request.config.getoption("--kind", default="mqd")
    with running(
        ensemble(
            kind,
            tmp_path_factory.mktemp(kind),
            1,
            options=(OPTION, *UNSTABLE[kind], *GROUP_OPTIONS),
        )
    ) as cluster:
        yield cluster


@pytest.fixture
def broker(two_phase_cluster: Ensemble) -> Broker:
    return Broker("127.0.0.1", two_phase_cluster.nodes[1].port, None, two_phase_cluster.bootstrap)


def ask(wire: Wire, name: str, version: int, **fields: Any) -> Any:
    """A flexible request by mqd's own schemas: kafka-python's have neither InitProducerId v6 nor
    mqd's tagged fields.
    """
    api = apis.by_name(name)
    wire.send_frame(
        struct.pack(">hhih", api.key, version, 1, -1) + b"\0" + api.encode_request(version, fields)
    )
    return api.decode_response(version, wire.frame(), 5 if api.is_flexible(version) else 4)


class TwoPhase(Transactions):
    def request(self, **fields: Any) -> Any:
        """One InitProducerId v6."""
        return ask(
            self.wire,
            "InitProducerId",
            6,
            transactional_id=self.name,
            **{"transaction_timeout_ms": 60_000, **fields},
        )

    def described(self) -> Any:
        (row,) = ask(
            self.wire, "DescribeTransactions", 0, transactional_ids=[self.name]
        ).transaction_states
        return row

    def init6(
        self,
        expected: Who = NOBODY,
        *,
        two_phase: bool = False,
        keep: bool = False,
        timeout_ms: int = 60_000,
    ) -> tuple[int, Who, Who]:
        """Its code, the producer, and the producer of the kept transaction."""

        def once() -> tuple[int, Any]:
            fields = {
                "enable_2_pc": two_phase,
                "keep_prepared_txn": keep,
                "transaction_timeout_ms": timeout_ms,
            }
            answer = self.request(**expected._asdict(), **fields)
            return answer.error_code, answer

        code, answer = self.settled(once)
        return (
            code,
            Who(answer.producer_id, answer.producer_epoch),
            Who(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch),
        )

    def open(self, **how: Any) -> Who:
        code, who, ongoing = self.init6(**how)
        assert (code, ongoing) == (NONE, NOBODY)
        return who


@pytest.fixture
def txn(wire: Wire, new_name: Callable[[], str]) -> Iterator[TwoPhase]:
    name = new_name()
    with Wire(*found_coordinator(wire, name, 1)) as connection:
        transactions = TwoPhase(connection, name)
        until(
            lambda: transactions.described().error_code not in SOON,
            "the coordinator has loaded",
            30,
        )
        yield transactions


@pytest.fixture
def topic(broker: Broker, wire: Wire, new_name: Callable[[], str]) -> str:
    name = create_topic(wire, new_name(), partitions=2)
    known_everywhere(broker, name, 2)
    return name


def write(
    wire: Wire, txn: Transactions, who: Who, topic: str, sequence: int = 0, *, partition: int = 0
) -> int:
    """The code of a batch in the transaction, added to it by the request itself (KIP-890)."""
    data = Batch(
        records=records(b"v"), attributes=TRANSACTIONAL, **who._asdict(), base_sequence=sequence
    ).encode()
    topics = [{"name": topic, "partition_data": [{"index": partition, "records": data}]}]
    (found,) = ask(
        wire,
        "Produce",
        12,
        transactional_id=txn.name,
        acks=-1,
        timeout_ms=30_000,
        topic_data=topics,
    ).responses
    code: int = found.partition_responses[0].error_code
    return code


def test_version_6_is_advertised(wire: Wire) -> None:
    answer = wire.ask("ApiVersions", 3, client_software_name="test", client_software_version="1")
    assert {row.api_key: row.max_version for row in answer.api_keys}[22] == 6


def test_enable_2pc_ignores_the_time_out(txn: TwoPhase, wire: Wire, topic: str) -> None:
    assert txn.init6(timeout_ms=0)[0] == INVALID_TIMEOUT
    assert txn.init6(timeout_ms=FOREVER)[0] == INVALID_TIMEOUT
    who = txn.open(two_phase=True, timeout_ms=100)
    assert txn.described().transaction_timeout_ms == FOREVER
    assert write(wire, txn, who, topic) == NONE
    with Wire(*found_coordinator(wire, other := txn.name + "-other", 1)) as connection:
        unprepared = TwoPhase(connection, other)
        assert write(wire, unprepared, unprepared.open(timeout_ms=100), topic, partition=1) == NONE
        unprepared.until_state("CompleteAbort")
    assert txn.described().transaction_state == "Ongoing"
    assert txn.end(who, version=5)[0] == NONE


def test_any_connection_may_end_it_repeatedly(
    txn: TwoPhase, wire: Wire, topic: str, broker: Broker
) -> None:
    who = txn.open(two_phase=True)
    assert write(wire, txn, who, topic) == NONE
    for _ in range(3):
        with Wire(*found_coordinator(wire, txn.name, 1)) as connection:
            assert TwoPhase(connection, txn.name).end(who, version=5) == (NONE, who.next())
    assert txn.end(who, version=5, commit=False)[0] == WRONG_STATE
    assert txn.end(who.before(), version=5)[0] == FENCED
    assert txn.end(Who(who.producer_id + 7777, 0), version=5)[0] == NO_MAPPING


def test_an_aborted_transaction_is_never_committed(txn: TwoPhase, wire: Wire, topic: str) -> None:
    who = txn.open(two_phase=True)
    assert write(wire, txn, who, topic) == NONE
    code, following, ongoing = txn.init6(two_phase=True)
    assert (code, ongoing) == (NONE, NOBODY) and following.producer_epoch > who.producer_epoch
    assert txn.end(who, version=5)[0] == FENCED
    assert write(wire, txn, following, topic) == NONE
    assert txn.end(following, version=5, commit=False)[0] == NONE
    assert txn.end(following, version=5)[0] == WRONG_STATE


def test_kafka_refuses_to_keep_a_transaction_and_mqd_does_not(
    txn: TwoPhase, request: pytest.FixtureRequest
) -> None:
    """From this a client detects at once, without an open transaction, which broker it uses."""
    who = txn.open()
    code, following, ongoing = txn.init6(who, keep=True)
    if request.config.getoption("--kind", default="mqd") == "kafka":
        assert code == UNSUPPORTED_VERSION
    else:
        assert (code, following, ongoing) == (NONE, who.next(), NOBODY)
        assert txn.described().transaction_timeout_ms == 60_000, "and the timeout stays"


def prepared(txn: TwoPhase, wire: Wire, topic: str, *, timeout_ms: int = 60_000) -> tuple[Who, Who]:
    """The producer that wrote a record into each partition, and the owner of the prepared
    transaction.
    """
    writer = txn.open(timeout_ms=timeout_ms)
    assert (
        write(wire, txn, writer, topic) == NONE
        and write(wire, txn, writer, topic, partition=1) == NONE
    )
    code, owner, ongoing = txn.init6(writer, two_phase=True, keep=True)
    assert (code, ongoing, owner) == (NONE, writer, writer.next())
    assert txn.init6(writer, two_phase=True, keep=True) == (NONE, owner, writer), "the same again"
    return writer, owner


@pytest.mark.mqd_only
def test_a_prepared_transaction_is_sealed(txn: TwoPhase, wire: Wire, topic: str) -> None:
    """Apache Kafka 4.3.1 prepares nothing on the broker."""
    writer, owner = prepared(txn, wire, topic)
    assert write(wire, txn, writer, topic, 1) == OLD_EPOCH
    assert txn.add(writer, topic, 0) == {FENCED}
    assert txn.add(owner, topic, 0) == {WRONG_STATE}
    assert txn.end(writer, version=5)[0] == FENCED
    assert txn.end(owner, version=5) == (NONE, owner.next())
    assert txn.until_state("CompleteCommit").producer_epoch == owner.next().producer_epoch
    for partition in (0, 1):
        row = fetch_one(wire, topic, 0, partition=partition, isolation_level=1)
        assert row.error_code == NONE and row.high_watermark == row.last_stable_offset == 3, (
            "a record, the seal and the marker"
        )


@pytest.mark.mqd_only
def test_a_prepared_transaction_waits_for_its_owner(txn: TwoPhase, wire: Wire, topic: str) -> None:
    """Beyond its timeout, which Apache Kafka does not suspend."""
    _, owner = prepared(txn, wire, topic, timeout_ms=300)
    time.sleep(1.5)  # the timeout, and several searches for timed-out transactions
    assert (
        txn.described().transaction_state == "Ongoing"
        and txn.described().transaction_timeout_ms == FOREVER
    )
    assert txn.end(owner, version=5, commit=False)[0] == NONE
    assert txn.end(owner, version=5, commit=False) == (NONE, owner.next())
    assert txn.end(owner, version=5)[0] == WRONG_STATE


@pytest.mark.mqd_only
def test_recovery_takes_over_the_decision_and_the_sweep_aborts(
    txn: TwoPhase, wire: Wire, topic: str
) -> None:
    """Apache Kafka 4.3.1 cannot recover a prepared transaction."""
    writer, owner = prepared(txn, wire, topic)
    code, newest, ongoing = txn.init6(two_phase=True, keep=True)
    assert (code, newest, ongoing) == (NONE, owner.next(), writer)
    assert txn.end(owner, version=5)[0] == FENCED
    code, following, ongoing = txn.init6()
    assert (code, ongoing) == (NONE, NOBODY) and following.producer_epoch > newest.producer_epoch
    assert txn.end(newest, version=5)[0] == FENCED


@pytest.mark.mqd_only
def test_the_next_transaction_of_the_owner_is_another_one(
    txn: TwoPhase, wire: Wire, topic: str
) -> None:
    """As in KIP-939; Apache Kafka 4.3.1 does not have it."""
    _, owner = prepared(txn, wire, topic)
    code, following = txn.end(owner, version=5)
    assert code == NONE
    txn.until_state("CompleteCommit")
    assert write(wire, txn, following, topic) == NONE
    assert txn.end(following, version=5)[0] == NONE


def test_without_the_option_version_6_does_not_exist(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if request.config.getoption("--broker", default=None) is not None:
        pytest.skip("its options are not known")
    kind = request.config.getoption("--kind", default="mqd")
    with (
        running(ensemble(kind, tmp_path_factory.mktemp(kind), 1, options=GROUP_OPTIONS)) as cluster,
        Wire("127.0.0.1", cluster.nodes[1].port) as wire,
    ):
        answer = wire.ask(
            "ApiVersions", 3, client_software_name="test", client_software_version="1"
        )
        assert {row.api_key: row.max_version for row in answer.api_keys}[22] == 5
        with pytest.raises(Closed):
            TwoPhase(wire, "any").request()


@pytest.mark.mqd_only
@pytest.mark.parametrize("read", [read_confluent, read_kafka_python, read_aiokafka])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_readers_skip_seals(
    txn: TwoPhase,
    wire: Wire,
    topic: str,
    broker: Broker,
    read: Callable[..., list[bytes]],
    isolation: str,
) -> None:
    """A seal is a control record of a type that only mqd writes."""
    for commit in (True, False, True):
        _, owner = prepared(txn, wire, topic)
        assert txn.end(owner, version=5, commit=commit)[0] == NONE
        txn.until_state("CompleteCommit" if commit else "CompleteAbort")
    assert read(broker.address, topic, isolation) == [b"v"] * (
        2 if isolation == "read_committed" else 3
    )


@pytest.mark.mqd_only
def test_mqctl_shows_prepared_transactions_and_their_owners(
    txn: TwoPhase, wire: Wire, topic: str, broker: Broker
) -> None:
    """Apache Kafka 4.3.1 does not record which transactions are prepared."""

    def mqctl(*arguments: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "mqctl",
            "txn",
            *arguments,
            "--bootstrap",
            broker.address,
            "-o",
            "json",
        ]
        return json.loads(
            subprocess.run(command, check=True, capture_output=True, timeout=30).stdout
        )

    writer, owner = prepared(txn, wire, topic)
    (row,) = mqctl("list", txn.name, "--prepared")
    assert (row["transactional_id"], row["state"], row["prepared"]) == (txn.name, "Ongoing", True)
    (row,) = mqctl("describe", txn.name)
    assert (row["owner"], row["producer_epoch"]) == (
        f"{owner.producer_id}:{owner.producer_epoch}",
        writer.producer_epoch,
    )
    assert txn.end(owner, version=5)[0] == NONE
    assert mqctl("list", txn.name, "--prepared") == []

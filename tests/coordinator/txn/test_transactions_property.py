"""Events in any order, with timeouts, failovers and writes that are lost: a transaction is in all
of its partitions or in none, in agreement with its client's response, and a producer that was
replaced changes nothing any more.

Some transactions are prepared (KIP-939): then only the pair that the preparation returned ends it,
not a timeout. Sealed partitions accept no record of the previous epoch.

Clients write a record into each partition that they have added; partitions end a producer's
transaction on a marker, and refuse markers of an older coordinator, as the log does. Markers arrive
in any order, late, and more than once.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from mqd.coordinator.shard import Producer
from mqd.coordinator.txn import records
from mqd.coordinator.txn.operations import (
    AbortTimedOut,
    AddPartitions,
    EndTransaction,
    InitializeProducer,
    MarkersWritten,
    PartitionsSealed,
    SealPartitions,
    SpareProducerId,
    WriteMarkers,
)
from mqd.coordinator.txn.transaction import ProducerIdWanted, Transaction
from mqd.errors import ErrorCode, MqError
from mqd.types import TopicPartition
from tests.coordinator.txn.transactions import Transactions
from tests.seeds import seeds

PARTITIONS = [TopicPartition(topic, number) for topic in "ab" for number in range(3)]
STEPS = 400


@dataclass
class Client:
    version: int
    producer: Producer | None = None
    tag: int | None = None
    """The tag of its open transaction."""
    is_owner: bool = False
    """It has prepared the transaction, and was not replaced since."""


@dataclass
class Log:
    """One partition."""

    open: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Tags of records without an outcome, by producer id."""
    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epoch: int = 0


@dataclass(eq=False, frozen=True)
class Sent:
    """One marker on its way to one partition."""

    coordinator_epoch: int
    markers: WriteMarkers | SealPartitions
    partition: TopicPartition


class World:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.version = self.dice.choice([0, 1, 2])
        self.txn = Transactions(self.version)
        if self.dice.random() < 0.3:  # near the maximum epoch
            record = records.encode(
                "t",
                Transaction(3000, 32_762, 60_000, updated_ms=0, previous_producer_id=3000),
                version=1,
            )
            self.txn.log.append((record, Producer(-1, -1)))
            self.txn.fail_over()
        self.clients = [Client(self.dice.choice([0, 2])) for _ in range(3)]
        self.logs = {partition: Log() for partition in PARTITIONS}
        self.tags = 0
        self.outcomes: dict[int, set[tuple[TopicPartition, bool]]] = defaultdict(set)
        self.records: dict[int, set[TopicPartition]] = defaultdict(set)
        self.promised: dict[int, bool] = {}
        self.coordinator_epoch = 1
        self.pending: list[Sent] = []
        self.late: list[Sent] = []
        self.delivered: set[Sent] = set()
        self.replaced: set[Producer] = set()
        self.seen: Producer | None = None
        self.commits = self.aborts = self.preparations = 0
        self.prepared: Producer | None = None
        """The owner of the prepared transaction, according to a client's response: no other
        producer and no timeout ends it.
        """
        self.tag_of: dict[int, dict[int, int]] = {}
        """By producer id and epoch."""

    def run(self) -> None:
        names = [
            "init",
            "add",
            "end",
            "prepare",
            "write_marker",
            "write_late_marker",
            "advance",
            "fail_over",
            "lose",
        ]
        for name in self.dice.choices(names, weights=[3, 12, 9, 9, 30, 2, 3, 2, 2], k=STEPS):
            client = self.dice.choice(self.clients)
            match name:
                case "init" | "add" | "end" | "prepare" | "lose":
                    getattr(self, name)(client)
                case "advance":
                    self.txn.advance(self.dice.choice([1, 5, 30]))
                case _:
                    getattr(self, name)()
            self.look()
        self.finish()

    # -- what clients do

    def ask(self, op: Any) -> Any:
        """The response, or the code of a refusal."""
        try:
            return self.txn.ask_now(op)
        except ProducerIdWanted:
            return self.ask(
                type(op)(
                    **{
                        **{name: getattr(op, name) for name in op.__slots__},
                        "spare_producer_id": next(self.txn.spare_ids),
                    }
                )
            )
        except MqError as error:
            return error.code

    def init(self, client: Client) -> None:
        expected = client.producer if self.dice.random() < 0.4 else None
        if expected in (None, self.prepared):
            self.prepared = None  # the sweep
        answer = self.ask(InitializeProducer("t", 20_000, expected))
        if isinstance(answer, ErrorCode):
            assert answer in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED), answer
        else:
            client.producer, client.tag, client.is_owner = Producer(**answer), None, False
            assert client.producer not in self.replaced

    def prepare(self, client: Client) -> None:
        """Mostly prepares a transaction of its own; otherwise it is recovery, by any client."""
        expected = client.producer if self.dice.random() < 0.8 else None
        answer = self.ask(
            InitializeProducer("t", 20_000, expected, two_phase=True, keep_prepared=True)
        )
        if isinstance(answer, ErrorCode):
            assert answer in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED), answer
            return
        tag = self.tag_of.get(answer.get("ongoing_txn_producer_id", -1), {}).get(
            answer.get("ongoing_txn_producer_epoch", -1)
        )
        client.producer, client.tag = Producer(answer["producer_id"], answer["producer_epoch"]), tag
        client.is_owner = "ongoing_txn_producer_id" in answer
        if client.is_owner:
            self.prepared = client.producer
            self.preparations += 1

    def add(self, client: Client) -> None:
        if client.producer is None:
            return
        partitions = tuple(self.dice.sample(PARTITIONS, self.dice.randint(1, 3)))
        answer = self.ask(AddPartitions("t", client.producer, partitions, client.version))
        if isinstance(answer, ErrorCode):
            return
        assert client.producer not in self.replaced, (
            "a producer that was replaced has added partitions"
        )
        assert not client.is_owner, "a prepared transaction got more partitions"
        if client.tag is None:
            self.tags += 1
            client.tag = self.tags
            self.tag_of.setdefault(client.producer.producer_id, {})[
                client.producer.producer_epoch
            ] = client.tag
        for partition in partitions:
            log = self.logs[partition]
            if log.epochs.get(client.producer.producer_id, -1) <= client.producer.producer_epoch:
                log.epochs[client.producer.producer_id] = client.producer.producer_epoch
                log.open[client.producer.producer_id].append(client.tag)
                self.records[client.tag].add(partition)

    def end(self, client: Client) -> None:
        if client.producer is None:
            return
        commit = self.dice.random() < 0.6
        before = len(self.txn.log)
        answer = self.ask(EndTransaction("t", client.producer, commit, client.version))
        if client.producer in self.replaced:
            assert len(self.txn.log) == before, (
                "a producer that was replaced has ended a transaction"
            )
        if self.prepared is not None and len(self.txn.log) > before:
            assert client.producer == self.prepared, (
                "a producer other than its owner has ended a prepared transaction"
            )
            self.prepared = None
        if isinstance(answer, ErrorCode):
            return
        if client.tag is not None:
            assert self.promised.setdefault(client.tag, commit) == commit
            self.commits += commit
            self.aborts += not commit
        client.tag, client.is_owner = None, False
        if client.version >= 2:
            client.producer = Producer(**answer)

    # -- events of the node

    def look(self) -> None:
        for effect in self.txn.effects:
            if isinstance(effect, SpareProducerId):
                self.ask(
                    AbortTimedOut(
                        effect.transactional_id, effect.producer, next(self.txn.spare_ids)
                    )
                )
        for markers in self.txn.markers():
            if not markers.partitions:
                self.ask(MarkersWritten("t", markers.producer, ()))
            self.pending.extend(
                Sent(self.coordinator_epoch, markers, partition) for partition in markers.partitions
            )
        for effect in self.txn.effects:
            if isinstance(effect, SealPartitions):
                self.pending.extend(
                    Sent(self.coordinator_epoch, effect, partition)
                    for partition in effect.partitions
                )
        self.txn.effects.clear()
        present = self.txn.shard.store.transactions.get("t")
        if self.prepared is not None:
            assert present is not None and present.is_prepared, "no client has ended it"
        acts = (
            None
            if present is None
            else present.producer_when_complete
            if present.was_prepared
            else present.owner
        )
        if acts is not None and acts != self.seen:
            if self.seen is not None:
                self.replaced.add(self.seen)
            self.seen = acts
            assert self.seen not in self.replaced, "an epoch was reused"

    def write_marker(self) -> None:
        if not self.pending:
            return
        sent = self.pending.pop(self.dice.randrange(len(self.pending)))
        if self.dice.random() < 0.2:
            self.late.append(sent)
        if self.mark(sent):
            done = MarkersWritten if isinstance(sent.markers, WriteMarkers) else PartitionsSealed
            self.ask(done("t", sent.markers.producer, (sent.partition,)))

    def write_late_marker(self) -> None:
        if self.late:
            self.mark(self.dice.choice(self.late))

    def mark(self, sent: Sent) -> bool:
        epoch, markers, partition = sent.coordinator_epoch, sent.markers, sent.partition
        log = self.logs[partition]
        id_, producer_epoch = markers.producer
        if epoch < log.coordinator_epoch or producer_epoch < log.epochs.get(id_, -1):
            return False
        if isinstance(markers, SealPartitions):
            if log.open[id_]:
                log.epochs[id_] = max(log.epochs[id_], producer_epoch)
            return True
        if markers.transaction_version < 2 and sent in self.delivered:
            # in the first protocol only the order on a connection distinguishes a repetition from a
            # new marker
            return True
        self.delivered.add(sent)
        if markers.transaction_version >= 2 and producer_epoch == log.epochs.get(id_, -1):
            # already written: an open transaction is the next one
            return not log.open[id_]
        log.coordinator_epoch = epoch
        log.epochs[id_] = producer_epoch
        for tag in log.open.pop(id_, []):
            self.outcomes[tag].add((partition, markers.committed))
        return True

    def fail_over(self) -> None:
        self.coordinator_epoch += 1
        self.late.extend(self.pending)
        self.pending.clear()
        self.txn.fail_over()

    def lose(self, client: Client) -> None:
        """An operation whose records are never committed, and whose response is lost."""
        kept = len(self.txn.log)
        if client.producer is not None and self.dice.random() < 0.5:
            op: Any = EndTransaction("t", client.producer, True, client.version)
        else:
            op = InitializeProducer("t", 20_000, None)
        self.ask(op)
        del self.txn.log[kept:]
        self.txn.effects.clear()
        self.fail_over()

    def finish(self) -> None:
        """No more clients: in the end every transaction has an outcome.

        Prepared transactions wait for a sweep.
        """
        for _ in range(3):
            self.prepared = None
            self.ask(InitializeProducer("t", 20_000, None))
        for _ in range(20):
            self.txn.advance(30)
            self.look()
            while self.pending:
                self.write_marker()
                self.look()
        present = self.txn.shard.store.transactions.get("t")
        assert present is None or not present.partitions
        for tag, partitions in self.records.items():
            verdicts = self.outcomes[tag]
            assert {partition for partition, _ in verdicts} == partitions, (
                f"transaction {tag} is open somewhere"
            )
            assert len({committed for _, committed in verdicts}) == 1, (
                f"transaction {tag} is half committed: {verdicts}"
            )
            if tag in self.promised:
                assert all(committed == self.promised[tag] for _, committed in verdicts), (
                    f"transaction {tag}: differs from its client's response"
                )


@pytest.mark.parametrize("seed", seeds(30, range(100)))
def test_transactions_are_atomic_and_fenced_producers_stay_fenced(seed: int) -> None:
    World(seed).run()


def test_the_simulation_covers_each_event() -> None:
    worlds = [World(seed) for seed in range(10)]
    for world in worlds:
        world.run()
    assert (
        sum(world.commits for world in worlds) > 10 and sum(world.aborts for world in worlds) > 10
    )
    assert sum(len(world.replaced) for world in worlds) > 50
    assert sum(world.preparations for world in worlds) > 15
    assert any(world.seen is not None and world.seen.producer_id >= 4000 for world in worlds)

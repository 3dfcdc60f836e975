"""Checks the guarantees of transactions against the final logs.

Clients record the writes of each transaction, and its end. The end *aborted*: its commit was never
requested, so none of its records may be visible. The end *committed*: its producer got the
acknowledgement, so all its records must be visible. If the commit was requested and not
acknowledged, the outcome is unknown: all records or none. Values are unique, so a value identifies
its transaction; the value of a copy identifies the copied record.

`Ledger.check` compares this with each partition as consumers of both isolation levels read it, and
the copies with their source. A core: no client, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mqd.testing.checker import SHOWN_MAX, Anomaly, Outcome
from mqd.types import TopicPartition

Log = Sequence[tuple[int, bytes]]
"""(offset, value) of records, in order."""

MEANINGS = {
    "txn-torn": "readers of committed records see only a part of a transaction",
    "txn-lost": "a record of a committed transaction is missing",
    "txn-aborted-read": "readers of committed records see a record of a transaction that was not "
    "committed",
    "txn-duplicate": "the log has a record of a transaction more than once",
    "txn-unknown": "the log has a record that no transaction wrote",
    "txn-reordered": "records of one transaction are not in the order in which they were sent",
    "txn-zombie": "the commit of a replaced producer was accepted",
    "2pc-stolen": "a client that is not its driver ended or took over a prepared transaction",
    "2pc-zombie": "a worker ended its prepared transaction with the epoch of its records",
    "2pc-swept": "a transaction was committed after its transactional id was initialized again",
    "2pc-repeat": "a decision was accepted, but its repetition was rejected",
    "2pc-turned": "after the end of a transaction, the opposite decision was accepted",
    "2pc-other": "the prepared transaction is not the open transaction of its producer",
    "txn-ghost": "readers of committed records see a record that is not at its offset in the log",
    "txn-reader": "the records of a reader of committed records differ from the final log",
    "copy-missing": "a record was not copied",
    "copy-twice": "a record was copied more than once",
    "copy-unknown": "a copy has no source record with its value",
    "copy-reordered": "copies of one source partition are not in the order of the source",
    "stable-back": "the last stable offset of one leader in one epoch decreased",
    "beyond-stable": "a response to a reader of committed records has a record at or above its "
    "last stable offset",
    "stable-beyond-watermark": "log start <= last stable offset <= high watermark does not "
    "hold in a response",
}


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction of one producer. `requested`: whether its producer has requested the commit
    before another one replaced it.
    """

    name: str
    outcome: Outcome = Outcome.PENDING
    requested: bool = False
    replaced: bool = False
    """Whether another producer has taken over the transactional id. Later requests of this producer
    do not count.
    """
    values: list[tuple[TopicPartition, bytes]] = field(default_factory=list)

    def commit_requested(self) -> None:
        """The producer requests the commit. From now on, only the coordinator knows the outcome."""
        self.requested = self.requested or not self.replaced

    def committed(self) -> None:
        """The producer got the acknowledgement."""
        assert self.requested and self.outcome is Outcome.PENDING, self
        self.outcome = Outcome.OK

    def given_up(self) -> None:
        """The transaction was aborted, or its producer has ended."""
        assert self.outcome is Outcome.PENDING, self
        self.outcome = Outcome.INFO if self.requested else Outcome.FAIL


def copy_of(partition: TopicPartition, offset: int, value: bytes) -> bytes:
    """The value of a copy."""
    return b"%s %d %d %s" % (partition.topic.encode(), partition.partition, offset, value)


class Ledger:
    """Every transaction of one run, and the records of `read_committed` consumers."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.commits = 0
        self.reads = 0
        self._by_value: dict[tuple[TopicPartition, bytes], list[Transaction]] = {}
        self._readers: dict[tuple[str, TopicPartition], list[tuple[int, bytes]]] = {}
        self._stable: dict[tuple[str, TopicPartition, int, int], int] = {}
        self._found: dict[tuple[str, TopicPartition], list[str]] = {}

    # -- events of clients

    def begin(self, name: str) -> Transaction:
        """A transaction begins."""
        self.transactions.append(transaction := Transaction(name))
        return transaction

    def write(self, transaction: Transaction, partition: TopicPartition, value: bytes) -> None:
        """The transaction sends a record. After an abort, the next transaction sends a copy
        again.
        """
        transaction.values.append((partition, value))
        self._by_value.setdefault((partition, value), []).append(transaction)

    def committed(self, transaction: Transaction) -> None:
        """Its producer got the acknowledgement of its commit."""
        if transaction.requested:
            transaction.committed()
            self.commits += 1
        else:
            self._note("txn-zombie", transaction.values[0][0], transaction.name)

    def broken(self, kind: str, transaction: Transaction, example: str) -> None:
        """A guarantee of a prepared transaction is broken."""
        self._note(kind, transaction.values[0][0], f"{transaction.name}: {example}")

    def read(self, reader: str, partition: TopicPartition, records: Log) -> None:
        """A reader of committed records, which began at offset 0, received these."""
        self.reads += len(records)
        self._readers.setdefault((reader, partition), []).extend(records)

    def unread(self, reader: str, partition: TopicPartition, log: Log) -> Log:
        """The records of the log that this reader has not received."""
        seen = set(self._readers.get((reader, partition), ()))
        return [row for row in log if row not in seen]

    def fetched(
        self,
        reader: str,
        partition: TopicPartition,
        *,
        node: int,
        leader_epoch: int,
        log_start: int,
        last_stable: int,
        high_watermark: int,
        newest: int,
    ) -> None:
        """The offsets in one response of one node. `newest`: the offset of its last record, -1
        without records.
        """
        if not log_start <= last_stable <= high_watermark:
            self._note(
                "stable-beyond-watermark",
                partition,
                f"{reader}: {log_start}, {last_stable}, {high_watermark}",
            )
        if newest >= last_stable:
            self._note(
                "beyond-stable", partition, f"{reader}: {newest}, last stable offset {last_stable}"
            )
        key = (reader, partition, node, leader_epoch)
        if last_stable < self._stable.get(key, -1):
            text = (
                f"{reader}: {self._stable[key]} to {last_stable} by node {node} in epoch "
                f"{leader_epoch}"
            )
            self._note("stable-back", partition, text)
        self._stable[key] = last_stable

    def restarted(self, node: int) -> None:
        """A new process of a node runs. Its offsets may be lower than those of the previous
        process.
        """
        for key in [key for key in self._stable if key[2] == node]:
            del self._stable[key]

    def _note(self, kind: str, partition: TopicPartition, example: str) -> None:
        self._found.setdefault((kind, partition), []).append(example)

    # -- the check

    def check(
        self,
        committed: Mapping[TopicPartition, Log],
        everything: Mapping[TopicPartition, Log],
        source: Mapping[TopicPartition, Log],
    ) -> list[Anomaly]:
        """Returns every anomaly. `committed`, `everything`: all records of the partitions with
        transactions, by isolation level. `source`: the copied partitions.
        """
        places: dict[tuple[TopicPartition, bytes], list[int]] = {}
        for partition, log in committed.items():
            all_records = dict(everything[partition])
            for offset, value in log:
                places.setdefault((partition, value), []).append(offset)
                if all_records.get(offset) != value:
                    self._note("txn-ghost", partition, f"{value!r} at {offset}")
        for (partition, value), offsets in places.items():
            self._check_value(partition, value, offsets)
        for transaction in self.transactions:
            self._check_transaction(transaction, places)
        self._check_copies(committed, source)
        self._check_readers(committed)
        return [
            Anomaly(kind, partition, len(rows), tuple(rows[:SHOWN_MAX]), MEANINGS[kind])
            for (kind, partition), rows in sorted(self._found.items())
        ]

    def _check_value(self, partition: TopicPartition, value: bytes, offsets: list[int]) -> None:
        if len(offsets) > 1:
            self._note("txn-duplicate", partition, f"{value!r} at {offsets}")
        writers = self._by_value.get((partition, value), [])
        if not writers:
            self._note("txn-unknown", partition, f"{value!r} at {offsets[0]}")
        elif all(writer.outcome is Outcome.FAIL or not writer.requested for writer in writers):
            self._note(
                "txn-aborted-read", partition, f"{value!r} at {offsets[0]} of {writers[-1].name}"
            )

    def _check_transaction(
        self, transaction: Transaction, places: Mapping[tuple[TopicPartition, bytes], list[int]]
    ) -> None:
        if not transaction.requested:
            return
        missing = [key for key in transaction.values if key not in places]
        if missing and transaction.outcome is Outcome.OK:
            self._note("txn-lost", missing[0][0], f"{missing[0][1]!r} of {transaction.name}")
        elif missing and len(missing) < len(transaction.values):
            alone = [
                key for key in transaction.values if key in places and len(self._by_value[key]) == 1
            ]
            if alone:
                self._note(
                    "txn-torn",
                    missing[0][0],
                    f"{transaction.name}: {alone[0]} is visible, {missing[0]} is missing",
                )
        before: dict[TopicPartition, int] = {}
        for partition, value in transaction.values:
            offset = places.get((partition, value), [-1])[0]
            if 0 <= offset < before.get(partition, -1) and not missing:
                self._note(
                    "txn-reordered", partition, f"{value!r} of {transaction.name} at {offset}"
                )
            before[partition] = max(offset, before.get(partition, -1))

    def _check_copies(
        self, committed: Mapping[TopicPartition, Log], source: Mapping[TopicPartition, Log]
    ) -> None:
        copies: dict[TopicPartition, list[int]] = {partition: [] for partition in source}
        rows = {partition: dict(log) for partition, log in source.items()}
        for log in committed.values():
            for _, value in log:
                topic, _, rest = value.partition(b" ")
                if not rest:
                    continue  # the value is no copy
                number, offset, original = rest.split(b" ", 2)
                partition = TopicPartition(topic.decode(), int(number))
                if rows.get(partition, {}).get(int(offset)) != original:
                    self._note("copy-unknown", partition, f"{original!r} at {int(offset)}")
                else:
                    copies[partition].append(int(offset))
        for partition, offsets in copies.items():
            seen: set[int] = set()
            newest = -1
            for copied in offsets:
                if copied in seen:
                    self._note("copy-twice", partition, str(copied))
                elif copied < newest:
                    self._note("copy-reordered", partition, f"{copied} after {newest}")
                seen.add(copied)
                newest = max(newest, copied)
            for at in rows[partition]:
                if at not in seen:
                    self._note("copy-missing", partition, str(at))

    def _check_readers(self, committed: Mapping[TopicPartition, Log]) -> None:
        for (reader, partition), seen in self._readers.items():
            log = list(committed.get(partition, ()))[: len(seen)]
            if log != seen:
                at = next((at for at, (a, b) in enumerate(zip(log, seen)) if a != b), len(log))
                there = log[at] if at < len(log) else None
                self._note("txn-reader", partition, f"{reader} saw {seen[at]}, the log has {there}")

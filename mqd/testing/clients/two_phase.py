"""Clients of the simulated cluster that commit in two phases (KIP-939): workers prepare
transactions, drivers end them.

A worker writes with its own transactional id, prepares, and waits. A driver is another client,
which knows only the transactional id, the producer id and the epoch. It decides at once, or long
after every timeout. It repeats its decision, and tries the opposite one. Some workers continue to
write after they have prepared, or try to end the transaction themselves. Some do not prepare. Some
transactions are *swept*: another client initializes their id again before their driver decides. The
ledger checks that only its driver or a sweep ends a prepared transaction.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio

from mqd.client.cluster import ClusterClient
from mqd.client.coordinator import Coordinator, KeyType
from mqd.client.errors import error_from_wire
from mqd.client.transactional import TransactionalProducer, open_transactional_producer
from mqd.client.txn import INIT_PRODUCER_ID, Phase
from mqd.client.txn_calls import end_transaction
from mqd.errors import ErrorCode, MqError
from mqd.testing.checker import Outcome
from mqd.testing.clients.common import CALL_SECONDS, PAUSE_SECONDS, pause
from mqd.testing.ledger import Ledger, Transaction
from mqd.types import TopicPartition

TIMEOUT_MS = 2500
"""The timeout of transactions that are not prepared."""
WORK_SECONDS = 0.2
"""The mean pause between two transactions of a worker."""
DECIDE_SECONDS = (0.02, 0.3, 1.6 * TIMEOUT_MS / 1000)
"""The delays of drivers. The last one is longer than every timeout."""
REFUSALS = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    }
)
"""Errors of EndTxn if another client has ended the transaction, or may end it."""


class Pair(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Pair(-1, -1)


@dataclass(eq=False, slots=True)
class Prepared:
    """One prepared transaction, with the decision of its worker."""

    transactional_id: str
    writer: Pair
    owner: Pair
    transaction: Transaction
    commit: bool


class TwoPhase:
    """Workers and drivers of one run."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        new_client: Callable[[str], Awaitable[ClusterClient]],
        source: Callable[[str], random.Random],
    ) -> None:
        self.ledger = ledger
        self.stopping = trio.Event()
        self.counts: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._new_client = new_client
        self._source = source
        self._left = 0
        self._finished = trio.Event()

    # -- for the runner

    def start(
        self, nursery: trio.Nursery, partitions: list[TopicPartition], *, workers: int
    ) -> None:
        self._nursery = nursery
        self.partitions = partitions
        self._left = workers
        for number in range(workers):
            nursery.start_soon(self._worker, f"task{number}")

    async def stop(self) -> None:
        """Begin no new transactions, and wait until all are ended."""
        self.stopping.set()
        await self._finished.wait()

    # -- workers

    async def _worker(self, name: str) -> None:
        chance = self._source(name)
        client, driver = await self._new_client(name), await self._new_client(f"{name}-driver")
        number = 0
        while not self.stopping.is_set():
            number += 1
            try:
                await self._work(client, driver, name, number, chance)
            except MqError as error:
                self.refused[error.code.name] += 1
                await pause(chance, PAUSE_SECONDS)
            await pause(chance, WORK_SECONDS)
        await self._sweep(client, name)
        self._left -= 1
        if not self._left:
            self._finished.set()

    async def _work(
        self,
        client: ClusterClient,
        driver: ClusterClient,
        name: str,
        number: int,
        chance: random.Random,
    ) -> None:
        """Run one transaction to its end."""
        fate = chance.choice(["commit", "commit", "commit", "abort", "sweep", "forget"])
        # no client initializes this id again: the timeout must abort the transaction
        transactional_id = name if fate != "forget" else f"{name}-{number}"
        transaction = self.ledger.begin(f"{name}.{number}")
        try:
            async with open_transactional_producer(
                client,
                transactional_id,
                transaction_timeout_ms=TIMEOUT_MS,
                timeout_s=CALL_SECONDS,
                leave=False,
                delivery_timeout_s=CALL_SECONDS,
            ) as producer:
                await self._write(producer, transaction, chance)
                if producer.phase is not Phase.OPEN or fate == "forget":
                    self.counts["forgotten_transactions"] += fate == "forget"
                    return
                writer = Pair(*producer.producer)
                owner = await self._prepare(client, name, writer, transaction)
                if owner is None:
                    return  # the transaction has timed out
                self.counts["prepared_transactions"] += 1
                prepared = Prepared(name, writer, owner, transaction, fate == "commit")
                if chance.random() < 0.5:
                    await self._continue(producer, prepared, chance)
                if fate == "sweep":
                    await self._sweep(client, name)
                    await self._end(driver, prepared, commit=True, refused="2pc-swept")
                    return
                await self._drive(driver, prepared, chance)
        finally:
            if transaction.outcome is Outcome.PENDING:
                transaction.given_up()

    async def _write(
        self, producer: TransactionalProducer, transaction: Transaction, chance: random.Random
    ) -> None:
        await producer.begin()
        for number in range(chance.choice([1, 2, 5])):
            partition = chance.choice(self.partitions)
            value = b"%s.%d" % (transaction.name.encode(), number)
            self.ledger.write(transaction, partition, value)
            await producer.enqueue(partition.topic, value, partition=partition.partition)
        await producer.flush()

    async def _continue(
        self, zombie: TransactionalProducer, prepared: Prepared, chance: random.Random
    ) -> None:
        """Continue to write after the transaction is prepared: these writes must have no effect."""
        self.counts["sealed_writes"] += 1
        client = zombie._client
        late = self.ledger.begin(f"{prepared.transaction.name}.late")
        partition, value = (
            prepared.transaction.values[-1][0],
            b"%s.late" % prepared.transaction.name.encode(),
        )
        self.ledger.write(late, partition, value)
        late.given_up()
        try:
            if chance.random() < 0.3:
                who = prepared.transactional_id, *prepared.writer
                await end_transaction(client, *who, chance.random() < 0.5, timeout_s=CALL_SECONDS)
                self.ledger.broken(
                    "2pc-zombie", prepared.transaction, f"epoch {prepared.writer.producer_epoch}"
                )
            with trio.move_on_after(CALL_SECONDS):
                await zombie.enqueue(partition.topic, value, partition=partition.partition)
                await zombie.flush()
        except MqError as error:
            self.refused[error.code.name] += 1

    # -- the two requests

    async def _prepare(
        self, client: ClusterClient, name: str, expected: Pair, transaction: Transaction
    ) -> Pair | None:
        """Prepare the transaction. Returns its owner; None if there is no open transaction."""
        body = {
            "transactional_id": name,
            "transaction_timeout_ms": TIMEOUT_MS,
            **expected._asdict(),
            "enable_2_pc": True,
            "keep_prepared_txn": True,
        }

        def accept(response: Any) -> Pair | None:
            if response.error_code:
                raise error_from_wire(response.error_code, f"preparing {transaction.name}")
            ongoing = Pair(response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)
            if ongoing == NO_PRODUCER:
                return None
            if expected not in (NO_PRODUCER, ongoing):
                self.ledger.broken("2pc-other", transaction, f"{ongoing} in place of {expected}")
            return Pair(response.producer_id, response.producer_epoch)

        coordinator = Coordinator(client, name, KeyType.TRANSACTION)
        deadline = trio.current_time() + CALL_SECONDS
        return await coordinator.call(
            f"preparing {transaction.name}",
            INIT_PRODUCER_ID,
            lambda: body,
            accept,
            deadline=deadline,
        )

    async def _sweep(self, client: ClusterClient, name: str) -> None:
        """Initialize the id until this succeeds, which aborts its open transaction."""
        while True:
            try:
                async with open_transactional_producer(
                    client, name, timeout_s=CALL_SECONDS, leave=False
                ):
                    return
            except MqError as error:
                self.refused[error.code.name] += 1
                await trio.sleep(PAUSE_SECONDS)

    async def _end(
        self,
        driver: ClusterClient,
        prepared: Prepared,
        *,
        commit: bool,
        refused: str = "",
        accepted: str = "",
    ) -> bool:
        """Send EndTxn until a response decides.

        `refused`: the anomaly to record if EndTxn must fail, and succeeds. `accepted`: the anomaly
        to record if EndTxn must succeed, and fails. Returns whether it succeeded.
        """
        while True:
            try:
                await end_transaction(
                    driver,
                    prepared.transactional_id,
                    *prepared.owner,
                    commit,
                    timeout_s=CALL_SECONDS,
                )
            except MqError as error:
                self.refused[error.code.name] += 1
                if error.code not in REFUSALS:
                    await trio.sleep(PAUSE_SECONDS)
                    continue
                if accepted:
                    self.ledger.broken(accepted, prepared.transaction, error.code.name)
                return False
            if refused:
                self.ledger.broken(
                    refused, prepared.transaction, "committed" if commit else "aborted"
                )
            return True

    # -- drivers

    async def _drive(
        self, driver: ClusterClient, prepared: Prepared, chance: random.Random
    ) -> None:
        """Decide, and repeat the decision."""
        with trio.move_on_after(chance.choice(DECIDE_SECONDS)):
            await self.stopping.wait()
        if chance.random() < 0.2:
            await self._recover(driver, prepared)
        transaction, commit = prepared.transaction, prepared.commit
        if commit:
            transaction.commit_requested()
        if not await self._end(driver, prepared, commit=commit, accepted="2pc-stolen"):
            return
        self.counts["driven_transactions"] += 1
        if commit:
            self.ledger.committed(transaction)
        for _ in range(chance.choice([0, 1, 3])):
            await self._end(driver, prepared, commit=commit, accepted="2pc-repeat")
            await pause(chance, PAUSE_SECONDS)
        if chance.random() < 0.5:
            await self._end(driver, prepared, commit=not commit, refused="2pc-turned")

    async def _recover(self, driver: ClusterClient, prepared: Prepared) -> None:
        """Get a new epoch for a driver that has lost it. This fences the previous owner."""
        while True:
            try:
                owner = await self._prepare(
                    driver, prepared.transactional_id, NO_PRODUCER, prepared.transaction
                )
            except MqError as error:
                self.refused[error.code.name] += 1
                await trio.sleep(PAUSE_SECONDS)
                continue
            if owner is None:
                self.ledger.broken("2pc-stolen", prepared.transaction, "nothing is open")
                return
            self.counts["recovered_transactions"] += 1
            prepared.owner = owner
            return

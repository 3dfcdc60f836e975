"""The driver of mode atomic-batch: reads and writes the decision record, and ends transactions.

Each call opens the driver's transactional id first. That fences drivers that were started before:
they can no longer write D. What a call then reads stays true until it writes, or it is fenced.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from mqd.client.errors import ClientError
from mqd.client.group_member import GroupMetadata
from mqd.client.offsets import CommittedOffset
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

from .decisions import (
    NO_BATCH,
    CommitAction,
    Contents,
    Decision,
    Prepared,
    changed_batch,
    check_query,
    commit_action_of,
    decision_of,
    entries_of,
    entry_count_of,
    orphans_of,
    places,
)
from .markers import ExactlyOnceError
from .transaction_ids import driver_id, worker_pattern_of

if TYPE_CHECKING:
    from mqd.client.sync import BlockingClient, BlockingRawProducer

logger = logging.getLogger("pyspark_mqd")

TRANSACTION_TIMEOUT_MS = 60_000
TOGETHER_MAX = 8
"""EndTxn requests at the same time."""
ONGOING = "Ongoing"
OVER = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
"""EndTxn errors which mean that this transaction has ended, or is not the newest one of the id."""


class Driver:
    """The driver of one query."""

    def __init__(
        self,
        client: BlockingClient,
        query: str,
        topic: str,
        *,
        accept_missing: bool = False,
        accept_changed: bool = False,
    ) -> None:
        self._client = client
        self._query = query
        self._topic = topic
        self._accept_missing = accept_missing
        self._accept_changed = accept_changed
        self.decided = NO_BATCH
        """The last batch that was decided before `plan`."""

    def plan(self, query_id: str | None) -> str:
        """Before tasks start: fence older drivers, commit what D lists, abort orphans, and claim.

        Returns the claim, which `commit` needs. `query_id` is None if it is not known yet.
        """
        with self._fencing() as producer:
            decision = self.read() or Decision(NO_BATCH, query_id or "", (), ended=True)
            if query_id is not None:
                check_query(decision, query_id, self._query)
            if not decision.ended:
                logger.info("Rolling batch %d of '%s' forward.", decision.batch_id, self._query)
                self._end_all(decision.transactions, commit=True)
            orphans = self._orphans(decision)
            claim = secrets.token_hex(8)
            self._write(producer, replace(decision.as_ended(), claim=claim))
            self.decided = decision.batch_id
        self._abort_all(orphans)
        return claim

    def commit(
        self,
        batch_id: int,
        query_id: str,
        claim: str,
        transactions: Sequence[Prepared],
        contents: Contents,
    ) -> None:
        """Make the batch visible, or find that it is. Raises ExactlyOnceError and ClientError.

        A batch that is refused leaves no transaction open: readers would wait for it.
        """
        with self._fencing() as producer:
            decision = self.read()
            try:
                action = commit_action_of(
                    decision,
                    batch_id=batch_id,
                    query_id=query_id,
                    query=self._query,
                    claim=claim,
                    contents=contents,
                    accept_missing=self._accept_missing,
                    accept_changed=self._accept_changed,
                )
            except ExactlyOnceError:
                decided = () if decision is None else decision.transactions
                self._abort_all(set(transactions) - set(decided))
                raise
            assert decision is not None
            if action is CommitAction.DECIDE:
                rows = tuple(transactions)
                decision = Decision(batch_id, query_id, rows, False, claim, contents)
                self._write(producer, decision)
            else:
                logger.info("Batch %d of '%s' was decided before.", batch_id, self._query)
                if not decision.contents.is_same(contents):
                    logger.warning(changed_batch(decision, contents))
                self._write(producer, replace(decision, claim=""))
                self._abort_all(set(transactions) - set(decision.transactions))
            self._end_all(decision.transactions, commit=True)
            orphans = self._orphans(decision)
            # fails for a fenced driver; without the claim: tasks that prepare from now on are late
            self._write(producer, replace(decision.as_ended(), claim=""))
        self._abort_all(orphans)

    def abort(self, batch_id: int, claim: str, transactions: Sequence[Prepared]) -> None:
        """Abort the batch, unless it is decided: then the next start completes it."""
        if not self._is_open(batch_id, claim):
            return  # without fencing the run that has the query now
        with self._fencing():
            if self._is_open(batch_id, claim):
                self._abort_all(transactions)

    def check_undecided(self, batch_id: int, claim: str, transaction: Prepared) -> None:
        """For a task that has prepared: abort its transaction if no driver would end it.

        A driver that has decided the batch, or a later run, may have listed orphans before this
        transaction was open. Raises ExactlyOnceError where that is so, and ClientError.
        """
        decision = self.read()
        if decision is None or (decision.claim == claim and decision.ended):
            return
        if transaction not in decision.transactions:
            self._abort_all([transaction])
        raise ExactlyOnceError(
            f"Transactional id '{transaction.transactional_id}' is of a task of batch {batch_id} "
            f"of '{self._query}', which is superseded. Another attempt was faster, or another run "
            "of the query has started. Its transaction is aborted, and no row is lost."
        )

    def abort_undecided(self) -> Decision | None:
        """Abort the open transactions that D does not list: for an operator, not for a query.

        Takes the claim first: an active run can no longer decide a batch. A run that starts
        meanwhile fences this call, which then aborts nothing. Returns D; None without a record:
        then nothing is aborted. Raises ClientError.
        """
        with self._fencing() as producer:
            decision = self.read()
            if decision is None:
                return None
            orphans = self._open_orphans(decision)
            self._write(producer, replace(decision, claim=secrets.token_hex(8)))
        self._abort_all(orphans)
        return decision

    def _is_open(self, batch_id: int, claim: str) -> bool:
        """Whether the batch is not decided, and no other run has claimed it."""
        decision = self.read()
        if decision is None or decision.claim != claim:
            return False
        if decision.batch_id >= batch_id:
            logger.info("Batch %d of '%s' is decided: not aborted.", batch_id, self._query)
            return False
        return True

    # -- the decision record

    @contextmanager
    def _fencing(self) -> Iterator[BlockingRawProducer]:
        with self._client.raw_producer(
            transactional_id=driver_id(self._query), transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        ) as producer:
            yield producer

    def read(self) -> Decision | None:
        """D, or None before the first batch."""
        rows: list[CommittedOffset] = []
        number = wanted = 0
        while not number or len(rows) < wanted:
            group = driver_id(self._query, number)
            found = self._client.admin.list_group_offsets([group], stable=True)[group]
            if isinstance(found, Exception):
                raise found
            if not found:
                break
            # markers of another topic are older: the option has changed
            topic = max(found, key=lambda tp: (found[tp].offset, -tp.partition)).topic
            rows += [found[tp] for tp in sorted(found) if tp.topic == topic]
            if not number:
                wanted = entry_count_of(rows[0].metadata, group)
            number += 1
        if not rows:
            return None
        rows = rows[:wanted]
        return decision_of(
            [each.offset for each in rows], [each.metadata for each in rows], self._query
        )

    def _write(self, producer: BlockingRawProducer, decision: Decision) -> None:
        entries = entries_of(decision, self._query)
        count = self._client.partition_count(self._topic)
        groups: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        for place, text in zip(places(len(entries), count), entries, strict=True):
            offset = CommittedOffset(decision.offset, text)
            groups.setdefault(place.group, {})[TopicPartition(self._topic, place.partition)] = (
                offset
            )
        producer.begin()
        for number, offsets in groups.items():
            producer.send_offsets(offsets, GroupMetadata(driver_id(self._query, number)))
        producer.commit()

    # -- transactions

    def _end_all(self, transactions: Sequence[Prepared], *, commit: bool) -> None:
        with ThreadPoolExecutor(TOGETHER_MAX) as pool:
            for _ in pool.map(lambda each: self._end(each, commit=commit), transactions):
                pass

    def _abort_all(self, transactions: Sequence[Prepared] | set[Prepared]) -> None:
        if transactions:
            self._end_all(sorted(transactions), commit=False)

    def _end(self, each: Prepared, *, commit: bool) -> None:
        try:
            self._client.end_transaction(*each, commit)
        except ClientError as error:
            if error.code not in OVER:
                raise
            if commit:
                raise ExactlyOnceError(
                    f"A decided transaction of '{self._query}' cannot be committed: transactional "
                    f"id '{each.transactional_id}', producer id {each.producer_id}, epoch "
                    f"{each.producer_epoch}: {error.message}. Another client has aborted it, so "
                    "its rows are lost. Write the batch again with a new checkpoint."
                ) from error

    def _orphans(self, decision: Decision) -> list[Prepared]:
        """Open transactions of the query's workers that D does not list. None while brokers do not
        respond: the next batch looks again."""
        try:
            return self._open_orphans(decision)
        except ClientError as error:
            logger.warning(
                "Open transactions of '%s' cannot be aborted now; retrying after the next "
                "batch: %s",
                self._query,
                error.message,
            )
            return []

    def _open_orphans(self, decision: Decision) -> list[Prepared]:
        listed = self._client.admin.list_transactions([ONGOING])
        names = [each.transactional_id for each in listed]
        pattern = worker_pattern_of(self._query)
        own = _matching(pattern, names)
        wanted = orphans_of(own, decision.transactions)
        if not wanted:
            return []
        found = []
        for name, about in self._client.admin.describe_transactions(wanted).items():
            if not isinstance(about, Exception) and about.state == ONGOING:
                found.append(
                    Prepared(name, *(about.owner or (about.producer_id, about.producer_epoch)))
                )
        return found


def _matching(pattern: str, names: Sequence[str]) -> list[str]:
    import re

    expression = re.compile(pattern)
    return [name for name in names if expression.search(name)]

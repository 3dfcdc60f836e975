"""Writes the dead letters of one share partition (KIP-1191), on the leader of the partition.

It takes records that are ARCHIVING, as the share coordinator has stored them, and for some of them
at a time:

1. writes their letters, and in the same transaction the progress that lists them;
2. has the share coordinator store that they are ARCHIVED.

A crash before 1, or within it: the transaction is aborted, and the next leader writes the letters.
A crash between 1 and 2: the next leader finds the records in the progress, and does step 2 only.
A former leader cannot disturb: `begin_epoch` fences its producer before the progress is read, and
the share coordinator refuses its writes since the state was read, so it cannot begin another
transaction after one whose records are still ARCHIVING (I65).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import trio

from mqd.errors import MqError
from mqd.protocol.record_reader import Record
from mqd.relay.ports import CommittedProgress
from mqd.relay.producer import RecordsRefused, RelayProducer
from mqd.relay.stall import WARN_EVERY_SECONDS
from mqd.share.dead_letters import (
    LETTERS_AT_ONCE,
    Archiving,
    Source,
    Target,
    cause_of,
    decode_written,
    encode_written,
    letter,
)
from mqd.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""The pause after a failure, and between looks for a topic that does not exist."""


class Records(Protocol):
    """The share partition, as the writer needs it."""

    def is_current(self) -> bool:
        """Whether this node still leads it."""
        ...

    def waiting(self, most: int) -> list[Archiving]:
        """The first records that are ARCHIVING."""
        ...

    def read(self, offsets: Sequence[Offset]) -> Awaitable[dict[Offset, Record | None]]:
        """The first of these records, as many as one transaction may copy. None for one that the
        log no longer has, or that cannot be copied. Raises MqError."""
        ...

    def archive(self, offsets: Sequence[Offset]) -> Awaitable[None]:
        """Returns when it is stored that they are ARCHIVED. Raises MqError."""
        ...

    def give_up(self, offsets: Sequence[Offset]) -> Awaitable[None]:
        """The same, for records that get no letter."""
        ...

    def expires_at_ms(self, record: Record | None) -> int | None:
        """When a record is too old for share groups; None: never."""
        ...

    def delivery_limit(self) -> int: ...


class DeadLetterWriter:
    """See the head of this file. One task at a time calls `run`."""

    def __init__(
        self,
        source: Source,
        records: Records,
        producer: RelayProducer,
        *,
        target: Callable[[], Target | None],
        create: Callable[[str], bool],
        wall_ms: Callable[[], int],
    ) -> None:
        """`target()`: the topic of the letters; None if none is configured any more. `create(name)`
        creates a topic soon; False if that is not allowed."""
        self._source = source
        self._place = TopicPartition(source.topic, source.partition)
        self._records = records
        self._producer = producer
        self._target = target
        self._create = create
        self._wall_ms = wall_ms
        self._written: frozenset[tuple[Offset, int]] | None = None
        """What the last committed transaction wrote; None: not known."""
        self._most = LETTERS_AT_ONCE
        """Fewer, after letters that were too large together."""
        self._too_large: set[Offset] = set()
        """Records that are too large to be copied."""
        self._creates = False
        """Whether it has requested the creation of the topic."""
        self._warned = ""
        """The reason of the last warning, until letters are written."""
        self._warned_at = -math.inf

    async def run(self) -> None:
        """Return when no record waits, or this node no longer leads the partition."""
        while self._records.is_current() and self._records.waiting(1):
            try:
                await self._step()
            except RecordsRefused as error:
                if not self._is_repaired(error):
                    await trio.sleep(RETRY_SECONDS)
            except MqError as error:
                self._written = None
                target = self._target()
                cause = self._producer.explained(error, () if target is None else [target.topic])
                self._warn(f"{cause.code.name} {cause.message}")
                await trio.sleep(RETRY_SECONDS)

    async def _step(self) -> None:
        target = self._target()
        if target is None:
            await self._drop()
            return
        if not target.partitions:
            self._creates = self._create(target.topic)
            if not self._creates:
                self._warn(
                    f"topic {target.topic!r} does not exist, and auto.create.topics.enable is false"
                )
            await trio.sleep(RETRY_SECONDS)
            return
        if self._creates:
            self._creates = False
            logger.info(
                "dead-letter topic created group=%s topic=%s "
                "reason='it did not exist, and auto.create.topics.enable is true'",
                self._source.group_id,
                target.topic,
            )
        if self._written is None:
            await self._producer.begin_epoch()
            found = await self._producer.progress([self._place])
            progress = found.get(self._place)
            self._written = decode_written(progress.metadata if progress else "")
        # Without an await, so that the records are those of this leader.
        waiting = self._records.waiting(LETTERS_AT_ONCE)
        done = [one.offset for one in waiting if (one.offset, one.since_ms) in self._written]
        if done:
            await self._records.archive(done)
        elif waiting:
            await self._write(target, waiting[: self._most])

    async def _write(self, target: Target, some: Sequence[Archiving]) -> None:
        assert self._written is not None
        assert not self._written & {(one.offset, one.since_ms) for one in some}, "twice (I65)"
        found = await self._records.read([one.offset for one in some])
        some = [one for one in some if one.offset in found]
        offsets = [one.offset for one in some]
        letters = []
        for one in some:
            record = found[one.offset]
            cause = cause_of(
                one,
                delivery_limit=self._records.delivery_limit(),
                expires_at_ms=self._records.expires_at_ms(record),
            )
            copies = target.copies and one.offset not in self._too_large
            letters.append(
                letter(
                    self._source, one, record, cause=cause, copies=copies, now_ms=self._wall_ms()
                )
            )
        place = TopicPartition(target.topic, self._source.partition % target.partitions)
        if not self._records.is_current():
            return
        try:
            await self._producer.write(
                {place: letters},
                {self._place: CommittedProgress(offsets[-1] + 1, encode_written(some))},
            )
        except RecordsRefused:
            self._most, self._written = len(some), None
            raise
        self._written = frozenset((one.offset, one.since_ms) for one in some)
        self._warned = ""
        logger.info(
            "dead letters written group=%s partition=%s target=%s count=%d",
            self._source.group_id,
            self._place,
            place,
            len(some),
        )
        await self._records.archive(offsets)
        self._most = LETTERS_AT_ONCE

    async def _drop(self) -> None:
        """No topic is configured any more: archive without letters."""
        waiting = self._records.waiting(LETTERS_AT_ONCE)
        logger.warning(
            "records archived without dead letters group=%s partition=%s count=%d "
            "reason='no topic is configured any more'",
            self._source.group_id,
            self._place,
            len(waiting),
        )
        await self._records.give_up([one.offset for one in waiting])

    def _is_repaired(self, error: RecordsRefused) -> bool:
        """The leader of the topic never accepts these letters: send fewer, then one without a copy
        of the record. Returns False if nothing smaller is left."""
        if self._most > 1:
            self._most //= 2
            return True
        for one in self._records.waiting(1):
            if one.offset not in self._too_large:
                self._too_large.add(one.offset)
                self._warn(f"the copy of offset {one.offset} is refused: {error.code.name}")
                return True
        self._warn(f"a letter is refused: {error.code.name} {error.message}")
        return False

    def _warn(self, reason: str) -> None:
        """At once for a new reason, and every few minutes while it lasts."""
        now = trio.current_time()
        if reason != self._warned or now >= self._warned_at + WARN_EVERY_SECONDS:
            self._warned, self._warned_at = reason, now
            logger.warning(
                "cannot write dead letters, will retry group=%s partition=%s reason=%r",
                self._source.group_id,
                self._place,
                reason,
            )

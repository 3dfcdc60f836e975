"""Which occurrences of schedules were cancelled while the relay wrote them (I58). Pure.

The offset of a tombstone says whether it cancels a record, except for the next occurrence of a
schedule: a tombstone may arrive after the relay has decided to write it. For example, the relay
knows the log below offset 41 when the record at 40 is due:

    offset  key  headers
    40      k    mqd-cron                       it is due: `writes(41)`
    41      k    (a tombstone)                  arrives meanwhile
    42      k    mqd-cron, mqd-cron-since: 41   the occurrence: `written(43)`
    43      k    mqd-cancels: 42                the tombstone that the relay adds, before the index
                                                has the occurrence

Between `writes` and the end of its window, the log is needed from 41 on, also after a failover:
then the window begins at the committed floor. `Cancellations` reads 41 and 42 again. `settled(43)`
follows when 43 is committed, so that the relay takes 41 to 43 into its index.
"""

from __future__ import annotations

from collections.abc import Iterable

from mqd.protocol.record_reader import INT64_MAX, Record
from mqd.relay.delay_progress import TimerProgress
from mqd.relay.delay_records import cancelled_only, due_ms_of, ends, repeats_since
from mqd.relay.delay_topic import DelayTopic
from mqd.types import Offset


class OccurrenceWindow:
    """The part of the log with occurrences whose cancellation is not known yet. `known` is the
    offset up to which the index has the log."""

    def __init__(self) -> None:
        self._needed: Offset = 0
        """The occurrences of the window may need the records from here on."""
        self._end: Offset = 0
        self._settled: Offset = 0
        """The occurrences below were compared with these records."""

    def begin(self, floor: Offset, log_end: Offset) -> None:
        """A relay begins. An earlier one, with this committed floor, may have written
        occurrences."""
        self._needed, self._end = floor, log_end

    def writes(self, known: Offset) -> None:
        """Occurrences are written from now on."""
        self._needed = min(self._needed, known) if known < self._end else known
        self._end = INT64_MAX

    def written(self, log_end: Offset) -> None:
        """The occurrences are committed, below this offset."""
        self._end = min(self._end, log_end)

    def settled(self, end: Offset) -> None:
        """Cancelled occurrences below `end` have a tombstone of their own."""
        self._settled = end

    def floor(self, floor: Offset, known: Offset) -> Offset:
        """The first record that is needed, if only the window needs records below `floor`."""
        return min(floor, self._needed) if known < self._end else floor

    def overlaps(self, known: Offset, end: Offset) -> bool:
        """Whether the records from `known` to `end` may have occurrences that are not settled."""
        return known < self._end and end > self._settled

    def occurrence_of(
        self, topic: DelayTopic, record: Record, known: Offset, loaded: TimerProgress
    ) -> tuple[Offset, Record] | None:
        """The record, without its content, if it is an occurrence that is not settled and not done
        in `loaded`; with the offset from which on records may cancel it."""
        since = repeats_since(topic, record)
        if (
            since is None
            or record.offset < max(known, self._settled)
            or loaded.covers(due_ms_of(topic, record), record.offset)
        ):
            return None
        return max(since, self._needed), record._replace(value=b"", headers=())


class Cancellations:
    """Which occurrences were cancelled while they were written. Each is given with the offset from
    which on a record may cancel it."""

    def __init__(self, topic: DelayTopic, occurrences: Iterable[tuple[Offset, Record]]) -> None:
        self._topic = topic
        self._occurrences = {record.offset: (since, record) for since, record in occurrences}
        self._ended: dict[bytes | None, Offset] = {
            record.key: -1 for _, record in self._occurrences.values()
        }
        """The last record of each key that ends all records before it."""
        self._cancelled: set[Offset] = set()

    @property
    def start(self) -> Offset:
        """`read` the records from here on."""
        return min(since for since, _ in self._occurrences.values())

    @property
    def end(self) -> Offset:
        return max(self._occurrences) + 1

    def read(self, record: Record) -> None:
        """Take the next record of the log into account. In the example, 41 ends all records of the
        key before it, from 41 on: so 42 is cancelled."""
        if record.key not in self._ended:
            return
        since, occurrence = self._occurrences.get(record.offset, (0, None))
        if occurrence is not None and self._ended[record.key] >= since:
            self._cancelled.add(record.offset)
        only = cancelled_only(record) if record.value is None else None
        if only is None:
            if ends(self._topic, record, -1):
                self._ended[record.key] = record.offset
            return
        since, occurrence = self._occurrences.get(only, (0, None))
        if (
            occurrence is not None
            and occurrence.key == record.key
            and since <= record.offset < only
        ):
            self._cancelled.add(only)

    def cancelled(self) -> list[Record]:
        """After all records were read, in their order."""
        return [
            record for offset, (_, record) in self._occurrences.items() if offset in self._cancelled
        ]

"""The queue of prebuilt batches, as transcripts: one step per line, with its result after `=>`.

add P [P ...]     batches of three records for these partitions of topic "a"
take [NODE]       the request to the node: partition and sequence of each batch
ok P SEQUENCE     that batch in flight is acknowledged
CODE P SEQUENCE   the batch in flight is refused with this code, lower case: the outcome
lost P SEQUENCE   its request has no response: it may be stored
at SECONDS        time passes; batches are retried a second after they failed
queue             partitions with the sequences that are not acknowledged; `*` where in flight
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.client.errors import ClientError
from mqd.client.raw_queue import NOT_APPENDED, BatchOutcome, QueuedBatch, RawQueue
from mqd.errors import ErrorCode
from mqd.types import TopicPartition
from tests.client.test_raw_producer import Built

GOLDEN = {
    "the first batch goes alone, then five": """
        add 0 0 0 0 0 0 0 0
        take => 0:0
        take => -
        ok 0 0
        take => 0:3
        take => 0:6
        take => 0:9
        take => 0:12
        take => 0:15
        take => -
        ok 0 3
        take => 0:18
    """,
    "several partitions in one request, those that waited first": """
        add 0 1 2 0 1 2
        take => 0:0 1:0 2:0
        ok 1 0
        take => 1:3
        ok 0 0
        ok 2 0
        add 1
        take => 0:3 2:3 1:6
    """,
    "after a refusal all that are behind wait, and go again in order": """
        add 0 0 0 0
        take => 0:0
        ok 0 0
        take => 0:3
        take => 0:6
        not_enough_replicas 0 3 => RETRY
        take => -
        out_of_order_sequence_number 0 6 => RETRY
        take => -
        at 2
        take => 0:3
        take => 0:6
        take => 0:9
        queue => 0: 3* 6* 9*
    """,
    "one that was stored in doubt is acknowledged as a duplicate": """
        add 0 0
        take => 0:0
        lost 0 0
        at 2
        take => 0:0
        duplicate_sequence_number 0 0 => ACKNOWLEDGED
        take => 0:3
        duplicate_sequence_number 0 3 => FAILED
    """,
    "the later one is acknowledged before the one in doubt": """
        add 0 0 0
        take => 0:0
        ok 0 0
        take => 0:3
        take => 0:6
        lost 0 3
        ok 0 6
        at 2
        take => 0:3
        ok 0 3
        queue => -
    """,
    "the later one is stored although the earlier one was refused: the order is lost": """
        add 0 0 0
        take => 0:0
        ok 0 0
        take => 0:3
        take => 0:6
        not_enough_replicas 0 3 => RETRY
        none 0 6 => FAILED
    """,
    "out of order at the head is the end": """
        add 0 0
        take => 0:0
        ok 0 0
        take => 0:3
        out_of_order_sequence_number 0 3 => FAILED
    """,
    "batches in flight hold a partition at its node": """
        add 0 0 0
        take 1 => 0:0
        ok 0 0
        take 1 => 0:3
        take 2 => -
        ok 0 3
        take 2 => 0:6
    """,
    "what cannot be cured fails at once": """
        add 0
        take => 0:0
        message_too_large 0 0 => FAILED
    """,
}


def queue_of(**options: int) -> RawQueue:
    given: dict[str, Any] = {
        "in_flight_max": 5,
        "request_bytes": 1 << 20,
        "buffer_bytes_max": 1 << 20,
    }
    queue = RawQueue(delivery_timeout_s=60, **(given | options))
    queue.restart(7, 0)
    return queue


class Played:
    """One transcript against a queue."""

    def __init__(self) -> None:
        self.queue = queue_of()
        self.now = 0.0
        self.in_flight: dict[tuple[int, int], QueuedBatch] = {}

    def step(self, word: str, *rest: str) -> str:
        if word == "add":
            for partition in rest:
                self.queue.append(
                    TopicPartition("a", int(partition)),
                    Built(int(partition), b"x", b"y", b"z"),
                    self.now,
                )
            return ""
        if word == "at":
            self.now = float(rest[0])
            return ""
        if word == "queue":
            return self.show_queue()
        if word == "take":
            taken = self.queue.take(self.now, int(rest[0]) if rest else 1, lambda _: True)
            self.in_flight |= {(entry.tp.partition, entry.base_sequence): entry for entry in taken}
            return " ".join(f"{entry.tp.partition}:{entry.base_sequence}" for entry in taken) or "-"
        entry = self.in_flight.pop((int(rest[0]), int(rest[1])))
        return self.respond(entry, word)

    def respond(self, entry: QueuedBatch, word: str) -> str:
        code = ErrorCode[{"ok": "NONE", "lost": "NETWORK_EXCEPTION"}.get(word, word.upper())]
        outcome, error = self.queue.judge(entry, ClientError(code) if code else None)
        if outcome is BatchOutcome.ACKNOWLEDGED:
            self.queue.acknowledge(entry)
        else:
            assert error is not None
            self.queue.put_back(
                entry, error, maybe_appended=code not in NOT_APPENDED, retry_at=self.now + 1
            )
        return "" if word in ("ok", "lost") else outcome.name

    def show_queue(self) -> str:
        lines = []
        for tp, each in self.queue._partitions.items():
            if each.entries:
                sequences = (
                    f"{entry.base_sequence}{'*' * entry.in_flight}"
                    for entry in each.entries
                    if entry.base_sequence >= 0
                )
                lines.append(f"{tp.partition}: {' '.join(sequences)}")
        return "; ".join(lines) or "-"


@pytest.mark.parametrize("name", GOLDEN)
def test_transcripts(name: str) -> None:
    played = Played()
    for line in GOLDEN[name].strip().splitlines():
        step, _, expected = line.strip().partition(" => ")
        assert played.step(*step.split()) == expected.strip(), line


def test_room_and_request_sizes() -> None:
    size = len(Built(0, b"x" * 100).data)
    queue = queue_of(buffer_bytes_max=3 * size, request_bytes=2 * size)
    for partition in range(3):
        assert queue.has_room(size)
        queue.append(TopicPartition("a", partition), Built(partition, b"x" * 100), 0.0)
    assert not queue.has_room(1) and queue.buffered_bytes == 3 * size and len(queue) == 3
    taken = queue.take(0.0, 1, lambda _: True)
    assert [entry.tp.partition for entry in taken] == [0, 1]
    queue.acknowledge(taken[0])
    assert queue.has_room(size) and not queue.has_room(size + 1)
    assert queue.drop() is False and len(queue) == 1  # the one in flight stays
    queue.acknowledge(taken[1])
    assert queue.buffered_bytes == 0 and queue.has_room(10 * size)


def test_sequences_wrap_as_kafkas_do() -> None:
    queue = queue_of()
    tp = TopicPartition("a", 0)
    for _ in range(2):
        queue.append(tp, Built(0, b"x", b"y"), 0.0)
    queue._partitions[tp].next_sequence = 2**31 - 1
    (first,) = queue.take(0.0, 1, lambda _: True)
    queue.acknowledge(first)
    (second,) = queue.take(0.0, 1, lambda _: True)
    assert (first.base_sequence, second.base_sequence) == (2**31 - 1, 1)


def test_deadlines() -> None:
    queue = queue_of()
    tp = TopicPartition("a", 0)
    assert queue.next_deadline(0.0) == float("inf") and queue.expired(1000.0) is None
    queue.append(tp, Built(0, b"x"), 10.0)
    assert queue.next_deadline(0.0) == 70.0
    queue.put_off(tp, 20.0, ClientError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody"))
    assert (
        queue.next_deadline(15.0) == 20.0
        and list(queue.sendable(15.0)) == []
        and list(queue.sendable(20.0)) == [tp]
    )
    assert queue.expired(69.0) is None
    error = queue.expired(70.0)
    assert (
        error is not None
        and "a-0: a batch was not acknowledged within 60 s; last: nobody" in error.message
    )

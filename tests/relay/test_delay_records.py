"""What becomes of a record of a delay topic that is due."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.back_off import parse_back_off
from mqd.client.partitioner import partition_for_key
from mqd.protocol.record_reader import Record
from mqd.relay.delay_records import (
    EXHAUSTED,
    EXPIRED,
    Outcome,
    Refusal,
    cancellation_of,
    due_ms_of,
    ends,
    outcome_of,
    partition_of,
    repeats_since,
)
from mqd.relay.delay_topic import DelayTopic
from mqd.types import TopicPartition

SOURCE = TopicPartition("orders.delay", 2)
DELAY = DelayTopic("orders")


def topic(**configs: str) -> DelayTopic:
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    found = DelayTopic.of({"mqd.delay.target": "orders", **dotted})
    assert found is not None
    return found


RETRY = topic(mqd_retry_backoff="1s,10s", mqd_dlq_topic="orders.dlq")


def record(*, timestamp: int = 1_000, **headers: str) -> Record:
    rows = [(name.replace("_", "-"), value.encode()) for name, value in headers.items()]
    return Record(7, timestamp, b"k", b"v", rows)


def outcome(of: DelayTopic, one: Record, now_ms: int = 10**9, **more: Any) -> Outcome:
    return outcome_of(of, SOURCE, one, now_ms=now_ms, next_offset=9, **more)


def headers(one: Outcome, index: int = 0) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in one.records[index].record.headers}


def test_a_relayed_record_is_unchanged_but_for_headers() -> None:
    one = record(mqd_delay="500", other="x", mqd_due="old")
    assert due_ms_of(DELAY, one) == 1_500
    found = outcome(DELAY, one)
    [sent] = found.records
    assert (sent.topic, sent.partition, found.cause) == ("orders", None, "")
    assert sent.record[2:4] == one[2:4]
    assert sent.record.timestamp == 1_500, "its time begins when it is due"
    assert headers(found) == {
        "mqd-delay": "500",
        "other": "x",
        "mqd-delay-topic": "orders.delay",
        "mqd-delay-partition": "2",
        "mqd-delay-offset": "7",
        "mqd-delay-timestamp": "1000",
        "mqd-due": "1500",
    }
    overdue = outcome(DELAY, record(mqd_deliver_at="5")).records[0].record
    assert overdue.timestamp == 1_000, "not before it was sent"


def test_no_time_stamp_is_later_than_now() -> None:
    """The topics would refuse it. The batch header of a producer may hide such a time stamp."""
    future = record(timestamp=2**62, mqd_deliver_at="5")
    assert outcome(DELAY, future, now_ms=900).records[0].record.timestamp == 900
    assert headers(outcome(DELAY, future))["mqd-delay-timestamp"] == str(2**62)
    [letter] = outcome(RETRY, record(timestamp=2**62, mqd_attempts="x"), now_ms=900).records
    assert (letter.topic, letter.record.timestamp) == ("orders.dlq", 900)
    refused = [Refusal("orders.dlq", "too large")]
    [bare] = outcome(RETRY, record(mqd_attempts="2"), now_ms=900, refused=refused).records
    assert bare.record.value is None and bare.record.timestamp == 900


def test_the_partition_is_that_of_the_key_or_of_the_source() -> None:
    [sent] = outcome(DELAY, record()).records
    assert partition_of(sent, SOURCE, 12) == partition_for_key(b"k", 12)
    keyless = sent._replace(record=sent.record._replace(key=None))
    assert [partition_of(keyless, SOURCE, count) for count in (1, 2, 3)] == [0, 0, 2]


def test_a_schedule_continues_in_the_delay_topic() -> None:
    one = record(timestamp=0, mqd_cron="* * * * *", mqd_delay="1")
    due_ms = due_ms_of(DELAY, one)
    assert due_ms == 60_000
    found = outcome(DELAY, one, now_ms=60_001)
    _, again = found.records
    assert (again.topic, again.partition) == SOURCE
    assert headers(found, 1)["mqd-deliver-at"] == "120000" and "mqd-delay" not in headers(found, 1)
    assert repeats_since(DELAY, again.record) == 9
    assert repeats_since(DELAY, again.record._replace(key=None)) is None, "nothing cancels it"
    assert repeats_since(RETRY, again.record) is None, "no schedule"
    assert due_ms_of(DELAY, again.record) == 120_000
    assert "mqd-cron-since" not in headers(outcome(DELAY, again.record))


def test_only_the_first_topic_of_a_chain_repeats_a_schedule() -> None:
    """Else each occurrence would begin a schedule at each hop: n topics, minutes to the power n."""
    letters = topic(mqd_message_ttl_ms="1", mqd_dlq_topic="dead")
    first = record(mqd_cron="* * * * *", mqd_cron_since="3")
    copy = outcome(DELAY, first).records[0].record
    letter = outcome(letters, first).records[0].record
    for one in (copy, letter):
        assert dict(one.headers)["mqd-cron"] == b"* * * * *", "its consumer may read the schedule"
        assert due_ms_of(DELAY, one) == one.timestamp
        assert len(outcome(DELAY, one).records) == 1
        assert repeats_since(DELAY, one) is None
        assert outcome(DELAY, one._replace(key=None)).cause == "", "a copy needs no key"


def test_each_topic_of_a_chain_delays() -> None:
    [sent] = outcome(DELAY, record(mqd_delay="500")).records
    assert due_ms_of(DELAY, sent.record) == sent.record.timestamp + 500 == 2_000
    [sent] = outcome(DELAY, record(mqd_deliver_at="1500")).records
    assert due_ms_of(DELAY, sent.record) == sent.record.timestamp == 1_500


def test_tombstones_cancel_all_earlier_records_or_one() -> None:
    tombstone = record()._replace(offset=20, value=None)
    assert ends(DELAY, tombstone, 7) and ends(DELAY, tombstone, 8)
    one = cancellation_of(SOURCE, record(), 5_000)
    assert (one.topic, one.partition) == SOURCE
    assert one.record.key == b"k" and one.record.value is None
    assert ends(DELAY, one.record, 7) and not ends(DELAY, one.record, 8)


def test_later_records_replace_earlier_ones_but_occurrences_do_not() -> None:
    replacing = topic(mqd_delay_replace="true")
    assert ends(replacing, record(), 3) and not ends(DELAY, record(), 3)
    assert ends(replacing, record(mqd_cron="* * * * *"), 3)
    occurrence = record(mqd_cron="* * * * *", mqd_cron_since="2")
    assert not ends(replacing, occurrence, 3)


def test_at_most_one_occurrence_is_late() -> None:
    found = outcome(DELAY, record(timestamp=0, mqd_cron="* * * * *"), now_ms=600_500)
    assert headers(found, 1)["mqd-deliver-at"] == "660000"


def test_a_retry_topic_counts_attempts_and_its_own_delays() -> None:
    """Other headers are those that the record had before it failed."""
    first = record(mqd_deliver_at="1", mqd_cron="* * * * *")
    assert due_ms_of(RETRY, first) == 2_000
    found = outcome(RETRY, first)
    assert headers(found)["mqd-attempts"] == "1"
    assert headers(found)["mqd-first-failure"] == "1000"
    second = record(timestamp=5_000, mqd_attempts="1", mqd_first_failure="1000")
    assert due_ms_of(RETRY, second) == 15_000
    found = outcome(RETRY, second)
    assert headers(found)["mqd-attempts"] == "2" and len(found.records) == 1
    assert headers(found)["mqd-first-failure"] == "1000"


def test_after_the_last_delay_a_record_is_a_dead_letter_at_once() -> None:
    last = record(timestamp=5_000, mqd_attempts="2")
    assert due_ms_of(RETRY, last) == 5_000
    found = outcome(RETRY, last)
    assert (found.cause, found.records[0].topic) == (EXHAUSTED, "orders.dlq")
    assert headers(found) == {
        "mqd-attempts": "2",
        "__dlq.errors.topic": "orders.delay",
        "__dlq.errors.partition": "2",
        "__dlq.errors.offset": "7",
        "__dlq.errors.timestamp": "5000",
        "__dlq.errors.delivery.count": "3",
        "__dlq.errors.message": EXHAUSTED,
        "mqd-dlq-target": "orders",
    }


ORIGIN: dict[str, Any] = {
    "mqd_origin_topic": "orders",
    "mqd_origin_partition": "4",
    "mqd_origin_offset": "81",
    "mqd_origin_timestamp": "12",
    "mqd_origin_group": "billing",
}


def test_a_dead_letter_names_where_the_record_failed_first() -> None:
    """If the consumer has sent that with the record."""
    first = outcome(RETRY, record(timestamp=1_000, **ORIGIN))
    assert headers(first)["mqd-origin-offset"] == "81"
    last = outcome(RETRY, record(timestamp=1_000, mqd_attempts="2", **ORIGIN))
    assert last.cause == EXHAUSTED
    expected = {
        "__dlq.errors.topic": "orders",
        "__dlq.errors.partition": "4",
        "__dlq.errors.offset": "81",
        "__dlq.errors.timestamp": "12",
        "__dlq.errors.group": "billing",
        "mqd-delay-topic": "orders.delay",
        "mqd-delay-partition": "2",
        "mqd-delay-offset": "7",
    }
    assert expected.items() <= headers(last).items()
    for wrong in ({"mqd_origin_offset": "x"}, {"mqd_origin_partition": ""}):
        last = outcome(RETRY, record(timestamp=1_000, mqd_attempts="2", **{**ORIGIN, **wrong}))
        assert headers(last)["__dlq.errors.offset"] == "7", "all of it, or nothing"


def test_a_record_does_not_choose_what_its_letter_says() -> None:
    """`mqctl dlq redrive` reads and writes the topics that a letter names."""
    forged = {"mqd-dlq-target": "payments", "__dlq.errors.group": "g", "__dlq.errors.x": "1"}
    one = record(mqd_attempts="2", own="1")
    one = one._replace(headers=[*one.headers, *((n, t.encode()) for n, t in forged.items())])
    found = headers(outcome(RETRY, one))
    assert found["mqd-dlq-target"] == "orders" and found["own"] == "1"
    assert not {"__dlq.errors.group", "__dlq.errors.x"} & set(found)
    bare = record(timestamp=1_000, mqd_attempts="2", **ORIGIN)._replace(key=None, value=None)
    found = headers(outcome(RETRY, bare))
    assert (found["__dlq.errors.topic"], found["__dlq.errors.offset"]) == ("orders.delay", "7"), (
        "it looks like a letter without a copy, so the original is read there"
    )


def test_a_schedule_without_a_key_is_refused() -> None:
    """No tombstone could end it."""
    one = record(mqd_cron="* * * * *")._replace(key=None)
    assert due_ms_of(DELAY, one) == one.timestamp, "at once, not at the first time"
    [sent] = outcome(DELAY, one).records
    assert sent.topic == "orders" and "key" in headers(outcome(DELAY, one))["mqd-error"]
    [dead] = outcome(topic(mqd_dlq_topic="dead"), one).records
    assert dead.topic == "dead"


def test_each_occurrence_of_a_schedule_has_its_own_time() -> None:
    first = record(timestamp=0, mqd_cron="* * * * *", mqd_ttl="500")
    found = outcome(DELAY, first, now_ms=60_100)
    assert found.records[0].record.timestamp == 60_000
    again = found.records[1].record
    assert again.timestamp == 60_000, "not in the future: the topic may refuse that"
    second = outcome(DELAY, again, now_ms=120_100)
    assert second.records[0].record.timestamp == 120_000 and not second.cause
    late = outcome(DELAY, again, now_ms=120_500)
    assert late.cause == EXPIRED and headers(late)["mqd-deliver-at"] == "180000"


def test_an_expired_record_is_a_dead_letter_or_dropped() -> None:
    one = record(mqd_delay="500", mqd_ttl="600")
    assert outcome(DELAY, one, now_ms=1_599).cause == ""
    assert outcome(DELAY, one, now_ms=1_600) == Outcome((), EXPIRED)
    of = topic(mqd_message_ttl_ms="400", mqd_dlq_topic="dead")
    assert outcome(of, one, now_ms=1_500).records[0].topic == "dead"


def test_a_record_with_bad_headers_is_relayed_at_once_and_says_so() -> None:
    one = record(mqd_delay="soon")
    assert due_ms_of(DELAY, one) == 1_000
    found = outcome(DELAY, one)
    assert found.records[0].topic == "orders" and "'mqd-delay'" in headers(found)["mqd-error"]
    dead = outcome(topic(mqd_dlq_topic="dead"), one)
    assert dead.records[0].topic == "dead"
    assert "'mqd-delay'" in headers(dead)["__dlq.errors.message"]


def test_a_record_that_topics_refuse() -> None:
    """First the copy is refused, then the letter without one: then the record is dropped."""
    target, letters = Refusal("orders", "too large"), Refusal("orders.dlq", "too large")
    cause = "refused by 'orders': too large"
    assert outcome(DELAY, record(), refused=[target]) == Outcome((), cause)
    assert outcome(DELAY, record(mqd_delay="x"), refused=[target]) == Outcome((), cause)
    [copy] = outcome(RETRY, record(), refused=[target]).records
    assert copy.topic == "orders.dlq" and copy.record.value == b"v"
    found = outcome(RETRY, record(), refused=[target, letters])
    [letter] = found.records
    assert letter.topic == "orders.dlq" and letter.record.key is letter.record.value is None
    assert headers(found)["__dlq.errors.offset"] == "7"
    assert outcome(RETRY, record(), refused=[target, letters, letters]) == Outcome((), cause)
    bad = record(mqd_attempts="x")
    assert outcome(RETRY, bad, refused=[letters, letters]).records == ()


def test_a_schedule_ends_if_its_topic_refuses_the_next_occurrence() -> None:
    found = outcome(DELAY, record(mqd_cron="* * * * *"), refused=[Refusal(SOURCE.topic, "large")])
    assert found == Outcome((), "refused by 'orders.delay': large")


def test_configs() -> None:
    assert DelayTopic.of({"mqd.dlq.topic": "x"}) is None
    found = topic(mqd_delay_replace="TRUE", mqd_message_ttl_ms="5")
    assert found.replaces and found.times.message_ttl_ms == 5 and not found.is_retry
    assert parse_back_off("500ms, 1s,2m,3h,1d") == (500, 1_000, 120_000, 10_800_000, 86_400_000)
    for wrong in ("1", "s", "1s,,2s", "-1s", "1w", "999999999d", ",".join(["1s"] * 33)):
        with pytest.raises(ValueError):
            parse_back_off(wrong)

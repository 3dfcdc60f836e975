"""The checks of the dead letters of share groups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mqd.protocol.record_reader import Record
from mqd.share.dead_letters import (
    EXPIRED,
    REJECTED,
    TOO_OFTEN,
    Archiving,
    Source,
    letter,
)
from mqd.share.values import AcknowledgeType
from mqd.testing.letter_check import LetterCheck
from mqd.testing.share_features import ShareFeatures
from mqd.testing.share_ledger import Hold, Place, ShareLedger
from mqd.types import TopicPartition

A = TopicPartition("a", 0)
PLACE = Place("g", A)
RECORD = Record(7, 1000, b"k", b"v", (("h", b"1"),))
LATEST_MS = 5000
LIMIT = 5


def written(
    cause: str, count: int, *, record: Record | None = RECORD, copies: bool = True, offset: int = 7
) -> Record:
    return letter(
        Source("g", "a", 0),
        Archiving(offset, count, 2000),
        record,
        cause=cause,
        copies=copies,
        now_ms=3000,
    )


def check(
    letters: list[Record],
    *kinds: AcknowledgeType,
    ttl_ms: int | None = None,
    copies: bool = True,
    is_confirmed: bool = True,
) -> set[str]:
    """The anomalies, if the deliveries of the record ended so."""
    ledger = ShareLedger()
    for number, kind in enumerate(kinds, start=1):
        at = float(number)
        hold = Hold("m", 7, b"k", b"v", number, None, at, at + 0.1, at + 1)
        ledger.delivered(PLACE, hold)
        ledger.acknowledging(hold, kind, at + 0.2)
        if is_confirmed:
            ledger.acknowledged(
                hold, kind, sent=at + 0.2, now=at + 0.3, until=at + 1, lock_seconds=1.0
            )
    features = ShareFeatures("group", copies, "", ttl_ms)
    found = LetterCheck(ledger, features, {A: {7: RECORD}}, LATEST_MS).check(["g"], letters)
    assert all(str(anomaly) for anomaly in found)
    return {anomaly.kind for anomaly in found}


ACCEPT, RELEASE, REJECT = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
)


def test_a_rejected_record_has_one_letter() -> None:
    assert check([written(REJECTED, 1)], REJECT) == set()
    assert check([], REJECT) == {"letter-lost"}
    assert check([written(REJECTED, 1)] * 2, REJECT) == {"letter-twice"}
    assert check([written(REJECTED, 2)], REJECT) == {"letter-early"}, "another delivery"


def test_a_record_has_a_letter_after_its_last_delivery() -> None:
    assert check([written(TOO_OFTEN, LIMIT)], *[RELEASE] * LIMIT) == set()
    assert check([], *[RELEASE] * LIMIT) == {"letter-lost"}
    assert check([written(TOO_OFTEN, LIMIT)], *[RELEASE] * 4) == {"letter-early"}
    assert check([written(TOO_OFTEN, 4)], *[RELEASE] * LIMIT) == {"letter-early"}


def test_an_accepted_record_has_no_letter() -> None:
    assert check([], ACCEPT) == set()
    found = check([written(TOO_OFTEN, LIMIT)], *[RELEASE] * 4, ACCEPT)
    assert found == {"letter-of-accepted"}


@pytest.mark.parametrize("kind", [ACCEPT, REJECT])
def test_without_a_response_both_may_be(kind: AcknowledgeType) -> None:
    kinds = [RELEASE] * 4 + [kind]
    assert check([written(TOO_OFTEN, LIMIT)], *kinds, is_confirmed=False) == set()
    expected = set() if kind is ACCEPT else {"letter-lost"}
    assert check([], *kinds, is_confirmed=False) == expected


def test_only_a_record_with_a_ttl_expires() -> None:
    assert check([written(EXPIRED, 0)], ttl_ms=4000) == set()
    assert check([written(EXPIRED, 0)], ttl_ms=4001) == {"letter-early"}
    assert check([written(EXPIRED, 0)]) == {"letter-early"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one._replace(key=b"other"),
        lambda one: one._replace(value=None),
        lambda one: one._replace(headers=one.headers[1:]),
        lambda one: one._replace(headers=one.headers[:-1]),
    ],
)
def test_a_letter_has_the_record(damage: Callable[[Record], Record]) -> None:
    assert check([damage(written(REJECTED, 1))], REJECT) == {"letter-wrong"}


def test_a_letter_without_a_copy_has_none() -> None:
    assert check([written(REJECTED, 1, copies=False)], REJECT, copies=False) == set()
    assert check([written(REJECTED, 1)], REJECT, copies=False) == {"letter-wrong"}


def test_a_letter_without_a_record_is_found() -> None:
    letters = [written(REJECTED, 1), written(REJECTED, 1, offset=8)]
    assert check(letters, REJECT) == {"letter-wrong"}
    assert check([written(REJECTED, 1), Record(0, 0, None, None)], REJECT) == {"letter-wrong"}

"""Where a query starts and ends: `starting...`, `ending...` and `asOf...`. Pure.

Precedence is Spark's: a timestamp for all partitions, timestamps by partition, then offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from .errors import OptionError, shortened
from .offsets import (
    EARLIEST,
    EXTRA_KEY,
    LATEST,
    Offsets,
    StreamOffset,
    parse_json,
    parse_offsets,
    parse_timestamps,
    show_partitions,
)
from .option_values import LONG_MAX, whole

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Earliest(NamedTuple):
    """Each partition's first offset."""


class Latest(NamedTuple):
    """Each partition's end."""


class ByOffset(NamedTuple):
    """Offsets by partition; -1 is the latest, -2 the earliest."""

    offsets: Offsets


class ByTimestamp(NamedTuple):
    """The first offset at or after a timestamp in ms, by partition."""

    timestamps: Offsets


class ByGlobalTimestamp(NamedTuple):
    """The same timestamp in ms for every partition."""

    timestamp: int


class AsOf(NamedTuple):
    """Option `asOfOffsets`: partitions that are not named did not exist, and are not read."""

    offset: StreamOffset


Limit = Earliest | Latest | ByOffset | ByTimestamp | ByGlobalTimestamp
EndLimit = Limit | AsOf


def parse_limit(own: Mapping[str, str], side: str, default: Limit) -> Limit:
    """`startingTimestamp` > `startingOffsetsByTimestamp` > `startingOffsets`; or `ending...`."""
    text = own.get(f"{side}timestamp")
    if text is not None:
        timestamp = whole(text)
        if timestamp is None or timestamp < 0:
            raise OptionError(
                f"Expected a single long value, got {shortened(text.strip())}. "
                f"Set option '{side}Timestamp' to milliseconds since 1970, from 0 on."
            )
        return ByGlobalTimestamp(timestamp)
    text = own.get(f"{side}offsetsbytimestamp")
    if text is not None:
        return ByTimestamp(parse_timestamps(text.strip()))
    text = own.get(f"{side}offsets")
    if text is None:
        return default
    if text.strip().lower() == "latest":
        return Latest()
    if text.strip().lower() == "earliest":
        return Earliest()
    try:
        return ByOffset(parse_offsets(text.strip()))
    except OptionError as error:
        raise OptionError(
            f"Option '{side}Offsets' must be 'earliest', 'latest' or offsets as JSON. {error}"
        ) from None


def check_batch(start: Limit, end: EndLimit) -> None:
    if isinstance(start, Latest):
        raise OptionError(
            "starting offset can't be latest for batch queries on Kafka. "
            "Set option 'startingOffsets' to 'earliest' or to offsets."
        )
    if isinstance(end, Earliest):
        raise OptionError(
            "ending offset can't be earliest for batch queries on Kafka. "
            "Set option 'endingOffsets' to 'latest' or to offsets."
        )
    for limit, forbidden, text in (
        (start, LATEST, "startingOffsets for {} can't be latest for batch queries on Kafka."),
        (end, EARLIEST, "ending offset for {} can't be earliest for batch queries on Kafka."),
    ):
        if isinstance(limit, ByOffset):
            for tp in sorted(limit.offsets):
                if limit.offsets[tp] == forbidden:
                    raise OptionError(text.format(tp))
    if isinstance(start, ByOffset) and isinstance(end, ByOffset):
        _check_pair(start.offsets, end.offsets, "offset")
    if isinstance(start, ByTimestamp) and isinstance(end, ByTimestamp):
        _check_pair(start.timestamps, end.timestamps, "timestamp")


def _check_pair(start: Offsets, end: Offsets, kind: str) -> None:
    if start.keys() != end.keys():
        raise OptionError(
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Topic-partitions for start offset: {show_partitions(start)}, topic-partitions for "
            f"end offset: {show_partitions(end)}."
        )
    for tp in sorted(start):
        if start[tp] > end[tp] and start[tp] >= 0 and end[tp] >= 0:
            raise OptionError(
                f"The specified start {kind} {start[tp]} is greater than the end {kind} {end[tp]} "
                f"for topic {tp.topic} partition {tp.partition}."
            )


def parse_as_of(own: Mapping[str, str]) -> EndLimit | None:
    """Batch time travel: `asOfTimestamp` and `asOfOffsets`."""
    given = [name for name in ("asOfTimestamp", "asOfOffsets") if name.lower() in own]
    if not given:
        return None
    rivals = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
    others = given[1:] + [name for name in rivals if name.lower() in own]
    if others:
        raise OptionError(
            f"Options '{given[0]}' and '{others[0]}' both say where the query ends. "
            "Remove one of them."
        )
    text = own[given[0].lower()].strip()
    if given[0] == "asOfTimestamp":
        return ByGlobalTimestamp(_timestamp_ms(text) + 1)
    offsets = parse_offset_line(text)
    if any(each < 0 for each in offsets.ends.values()):
        raise OptionError(
            f"Option 'asOfOffsets' is '{shortened(text)}', but a query as of some offsets "
            "needs offsets "
            "from 0 on. Replace -1 and -2 by offsets."
        )
    return AsOf(offsets)


def parse_offset_line(text: str) -> StreamOffset:
    """Offsets, or a line of a checkpoint's file `offsets/N`. Raises OptionError."""
    try:
        value = parse_json(text)
        if not isinstance(value, dict):
            raise ValueError(value)
    except ValueError:
        return StreamOffset(parse_offsets(text))
    if EXTRA_KEY in value:
        return StreamOffset.from_json(value)
    return StreamOffset(parse_offsets(text))


def _timestamp_ms(text: str) -> int:
    timestamp = whole(text, LONG_MAX - 1)
    if timestamp is None:
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            timestamp = (moment - _EPOCH) // timedelta(milliseconds=1)
    if timestamp is None or timestamp < 0:
        raise OptionError(
            f"Option 'asOfTimestamp' is '{shortened(text)}', which is no time since 1970. Write "
            "milliseconds since 1970 or ISO 8601, for example '2026-11-23T12:00:00Z'."
        )
    return timestamp

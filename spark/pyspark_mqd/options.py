"""Options of the source: names, defaults, precedence and refusals of Spark's Kafka source. Pure.

Names are case-insensitive. Names that look misspelled are refused (`option_names.py`), and so are
security options that the client cannot honour (`connection.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mqd.types import TopicPartition

from .connection import PREFIX, Connection, client_name, connection_of, lowered
from .errors import OptionError, shortened
from .offsets import parse_partitions
from .option_limits import (
    Earliest,
    EndLimit,
    Latest,
    Limit,
    check_batch,
    parse_as_of,
    parse_limit,
)
from .option_names import check_source_names
from .option_values import INT_MAX, boolean, duration_s, natural, number, positive

STRATEGIES = {"subscribe": "subscribe", "subscribepattern": "subscribePattern", "assign": "assign"}
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS = "headers"
STREAM_NAMES = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
)
_TOPIC_NAME = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
DEFAULT_NUM_RETRIES = 3
DEFAULT_RETRY_INTERVAL_MS = 1_000
DEFAULT_POLL_TIMEOUT_MS = 120_000
DEFAULT_MAX_TRIGGER_DELAY = "15m"


# -- what is read


class Assign(NamedTuple):
    """Option `assign`: these partitions."""

    partitions: tuple[TopicPartition, ...]


class Subscribe(NamedTuple):
    """Option `subscribe`: all partitions of these topics."""

    topics: tuple[str, ...]


class SubscribePattern(NamedTuple):
    """Option `subscribePattern`: topics in whose name the expression is found."""

    pattern: str


Strategy = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True)
class SourceOptions:
    """Everything that a query says about its source."""

    connection: Connection
    strategy: Strategy
    start: Limit
    end: EndLimit
    no_match_latest: bool
    """`startingOffsetsByTimestampStrategy` is `latest`, not `error`."""
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets: int | None
    min_offsets: int | None
    max_bytes: int | None
    max_trigger_delay_s: float
    num_retries: int
    retry_interval_s: float
    poll_timeout_s: float
    fetch_bytes: int | None
    group_id: str | None
    read_committed: bool
    columns: tuple[str, ...]
    filter_pushdown: bool
    commit_offsets: bool
    offset_metadata: bool


def parse_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a query. Raises OptionError for whatever Spark's Kafka source refuses."""
    own = lowered(options)
    if streaming:
        _refuse_for_streams(own)
    strategy = _strategy(own)
    start = parse_limit(own, "starting", Latest() if streaming else Earliest())
    end: EndLimit = Latest()
    if not streaming:
        end = parse_as_of(own) or parse_limit(own, "ending", Latest())
        check_batch(start, end)
    _refuse_client_names(own)
    connection = connection_of(own)
    check_source_names(options)
    max_offsets = positive(own, "maxOffsetsPerTrigger")
    min_offsets = positive(own, "minOffsetsPerTrigger")
    if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
        raise OptionError(
            f"The value of minOffsetPerTrigger({min_offsets}) is higher than the "
            f"maxOffsetsPerTrigger({max_offsets}). Lower 'minOffsetsPerTrigger'."
        )
    group_id = client_name(own, "group.id")
    commit_offsets = boolean(own, "commitOffsets", False)
    if commit_offsets and not group_id:
        raise OptionError(
            "Option 'commitOffsets' needs the group to commit to. "
            "Set option 'kafka.group.id' to a name that no other query uses."
        )
    return SourceOptions(
        connection=connection,
        strategy=strategy,
        start=start,
        end=end,
        no_match_latest=_no_match_latest(own),
        fail_on_data_loss=boolean(own, "failOnDataLoss", True),
        min_partitions=positive(own, "minPartitions", INT_MAX),
        max_records_per_partition=positive(own, "maxRecordsPerPartition"),
        max_offsets=max_offsets,
        min_offsets=min_offsets,
        max_bytes=positive(own, "maxBytesPerTrigger"),
        max_trigger_delay_s=duration_s(own, "maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY),
        num_retries=positive(own, "fetchOffset.numRetries", INT_MAX) or DEFAULT_NUM_RETRIES,
        retry_interval_s=_milliseconds(
            own, "fetchOffset.retryIntervalMs", DEFAULT_RETRY_INTERVAL_MS
        ),
        poll_timeout_s=_milliseconds(own, "kafkaConsumer.pollTimeoutMs", DEFAULT_POLL_TIMEOUT_MS),
        fetch_bytes=_fetch_bytes(own),
        group_id=group_id,
        read_committed=_read_committed(own),
        columns=_columns(own),
        filter_pushdown=boolean(own, "filterPushdown", False),
        commit_offsets=commit_offsets,
        offset_metadata=boolean(own, "offsetMetadata", True),
    )


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the source, from `columns` and `includeHeaders`. Raises OptionError."""
    return _columns(lowered(options))


def ignored_in_batch(options: Mapping[str, str]) -> list[str]:
    """Options of streams that a batch query leaves aside."""
    own = lowered(options)
    return [name for name in STREAM_NAMES if name.lower() in own]


# -- parts


def _strategy(own: Mapping[str, str]) -> Strategy:
    given = [key for key in STRATEGIES if key in own]
    names = ", ".join(STRATEGIES.values())
    if not given:
        raise OptionError(
            f"One of the following options must be specified for Kafka source: {names}."
        )
    if len(given) > 1:
        raise OptionError(
            f"Only one of the following options can be specified for Kafka source: {names}. "
            f"Remove all but one of: {', '.join(STRATEGIES[key] for key in given)}."
        )
    value = own[given[0]]
    if given[0] == "assign":
        if not value.strip().startswith("{"):
            raise OptionError(
                "No topicpartitions to assign as specified value for option "
                f"'assign' is '{shortened(value)}'. Write for example {{\"topic\":[0,1]}}."
            )
        partitions = parse_partitions(value)
        _check_names({tp.topic for tp in partitions}, "assign")
        return Assign(partitions)
    if given[0] == "subscribe":
        topics = tuple(sorted({each.strip() for each in value.split(",")} - {""}))
        if not topics:
            raise OptionError(
                "No topics to subscribe to as specified value for option "
                f"'subscribe' is '{value}'. Write for example 'topicA,topicB'."
            )
        _check_names(topics, "subscribe")
        return Subscribe(topics)
    pattern = value.strip()
    if not pattern:
        raise OptionError(
            "Pattern to subscribe is empty as specified value for option "
            f"'subscribePattern' is '{value}'. Write for example 'events-.*'."
        )
    compile_pattern(pattern)
    return SubscribePattern(pattern)


def _check_names(topics: Iterable[str], option: str) -> None:
    """A name that no cluster accepts is a mistake of the option. Raises OptionError."""
    for topic in sorted(topics):
        if not _TOPIC_NAME.fullmatch(topic):
            raise OptionError(
                f"Option '{option}' names topic '{shortened(topic)}', which cannot exist "
                "(InvalidTopicException). A name has 1 to 249 of the characters a-z, A-Z, 0-9, "
                "'.', '_' and '-', and is not '.' or '..'. Correct the option."
            )


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A Java expression as Python's. Raises OptionError for what Python cannot express."""
    translated = re.sub(
        r"\\Q(.*?)(?:\\E|$)", lambda found: re.escape(found.group(1)), pattern, flags=re.S
    )
    translated = re.sub(r"\(\?<(?![=!])", "(?P<", translated)
    translated = re.sub(r"\\k<([^>]*)>", r"(?P=\1)", translated).replace(r"\z", r"\Z")
    for java, python in _JAVA_CLASSES.items():
        translated = translated.replace(java, python)
    try:
        if "&&" in translated or re.search(r"(?<!\\)(?:\\\\)*\\[pPhHRX]", translated):
            raise re.error("a class of characters that only Java knows")
        return re.compile(translated)
    except (re.error, RecursionError, OverflowError) as error:
        raise OptionError(
            f"Option 'subscribePattern' is '{shortened(pattern)}', which cannot be used: {error}. "
            "Write an expression that Java and Python share, for example 'events-[a-z]+'."
        ) from None


_JAVA_CLASSES = {
    r"[\p{Alpha}": "[a-zA-Z",
    r"\p{Alpha}": "[a-zA-Z]",
    r"\p{Digit}": "[0-9]",
    r"\p{Alnum}": "[a-zA-Z0-9]",
    r"\p{Lower}": "[a-z]",
    r"\p{Upper}": "[A-Z]",
}


def _refuse_for_streams(own: Mapping[str, str]) -> None:
    for key, name, what in (
        ("endingoffsets", "endingOffsets", "ending offset"),
        ("endingoffsetsbytimestamp", "endingOffsetsByTimestamp", "ending timestamp"),
        ("endingtimestamp", "endingTimestamp", "ending timestamp"),
        ("asoftimestamp", "asOfTimestamp", "asOfTimestamp"),
        ("asofoffsets", "asOfOffsets", "asOfOffsets"),
    ):
        if key in own:
            raise OptionError(
                f"{what} not valid in streaming queries. "
                f"Remove option '{name}', or use a batch query."
            )


def _refuse_client_names(own: Mapping[str, str]) -> None:
    if client_name(own, "auto.offset.reset") is not None:
        raise OptionError(
            "Kafka option 'auto.offset.reset' is not supported. Instead set the source option "
            "'startingOffsets' to 'earliest' or 'latest' to specify where to start. It applies to "
            "a new query only: a query that resumes starts where it left off."
        )
    for name, what in (("key.deserializer", "keys"), ("value.deserializer", "values")):
        if client_name(own, name) is not None:
            raise OptionError(
                f"Kafka option '{name}' is not supported as {what} are deserialized as byte arrays "
                f"with ByteArrayDeserializer. Use DataFrame operations to explicitly deserialize "
                f"the {what}."
            )
    for name in ("enable.auto.commit", "interceptor.classes"):
        if client_name(own, name) is not None:
            hint = " Use option 'commitOffsets'." if name == "enable.auto.commit" else ""
            raise OptionError(f"Kafka option '{name}' is not supported.{hint}")


def _milliseconds(own: Mapping[str, str], name: str, default: int) -> float:
    """A time in seconds, at most 2^31 - 1 ms: Java programs write the largest long for "ever"."""
    return min(natural(own, name, default), INT_MAX) / 1000


def _read_committed(own: Mapping[str, str]) -> bool:
    text = client_name(own, "isolation.level") or "read_uncommitted"
    if text.strip().lower() not in ("read_committed", "read_uncommitted"):
        raise OptionError(
            f"Option 'kafka.isolation.level' is '{text}'. "
            "Set it to 'read_committed' or 'read_uncommitted'."
        )
    return text.strip().lower() == "read_committed"


def _no_match_latest(own: Mapping[str, str]) -> bool:
    text = own.get("startingoffsetsbytimestampstrategy", "error")
    if text.strip().lower() not in ("error", "latest"):
        raise OptionError(
            f"Option 'startingOffsetsByTimestampStrategy' is '{text}'. "
            "Set it to 'error' or 'latest'."
        )
    return text.strip().lower() == "latest"


def _fetch_bytes(own: Mapping[str, str]) -> int | None:
    text = client_name(own, "fetch.max.bytes")
    if text is None:
        return None
    value = number(text, PREFIX + "fetch.max.bytes", INT_MAX)
    if value <= 0:
        raise OptionError(f"Option 'kafka.fetch.max.bytes' must be positive, but it is '{text}'.")
    return value


def _columns(own: Mapping[str, str]) -> tuple[str, ...]:
    headers = boolean(own, "includeHeaders", False)
    text = own.get("columns")
    if text is None:
        return (*COLUMNS, HEADERS) if headers else COLUMNS
    known = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    wanted = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        name = known.get(each.lower())
        if name is None:
            raise OptionError(
                f"Option 'columns' names '{each}', which the source does not have. "
                f"Choose among: {', '.join(known.values())}."
            )
        if name not in wanted:
            wanted.append(name)
    if headers and HEADERS not in wanted:
        wanted.append(HEADERS)
    if not wanted:
        raise OptionError(
            f"Option 'columns' is '{text}' and names no column. "
            f"Choose among: {', '.join(known.values())}."
        )
    return tuple(wanted)

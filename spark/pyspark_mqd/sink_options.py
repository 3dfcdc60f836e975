"""Options and columns of the sink: names, defaults and refusals of Spark's Kafka sink. Pure.

Option names are case-insensitive, column names are not, as in Spark. Columns that the sink does not
know are not written, as in Spark, so what a source has read can be written as it is. Producer names
of Kafka are honoured with or without the prefix `kafka.`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from mqd import limits
from mqd.client.client_properties import is_security_key
from mqd.protocol.compression import Codec

from .connection import HONOURED, PREFIX, Connection, client_name, connection_of, lowered
from .errors import OptionError
from .option_names import check_sink_names
from .transaction_ids import check_identity

DEFAULT_BATCH_BYTES = 512 * limits.KIB
DEFAULT_REQUEST_BYTES_MAX = limits.MIB
DEFAULT_BUFFER_BYTES = 32 * limits.MIB
DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 900_000
"""`transaction.max.timeout.ms` of brokers: a task may write for this long."""
IN_FLIGHT_MAX = 5

PRODUCER_NAMES = frozenset(
    {
        *("acks", "enable.idempotence", "retries", "retry.backoff.ms", "retry.backoff.max.ms"),
        *("compression.type", "batch.size", "linger.ms", "max.request.size", "buffer.memory"),
        *("delivery.timeout.ms", "max.in.flight.requests.per.connection"),
        "transaction.timeout.ms",
    }
)
"""Honoured, or exceeded: the sink always waits for all replicas in sync, and is idempotent."""

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (HEADERS_TYPE,),
    "partition": ("int",),
}
TIMESTAMP_TYPES = ("timestamp",)


class Guarantee(StrEnum):
    """Option `deliveryGuarantee`."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"
    ATOMIC_BATCH = "atomic-batch"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user wants of the sink."""

    connection: Connection
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    topic: str | None = None
    timestamp_column: str | None = None
    task_headers: bool = False
    identity: str | None = None
    """Option `exactlyOnceId`."""
    marker_topic: str | None = None
    accept_missing_markers: bool = False
    accept_changed_rows: bool = False
    """A task or a batch that has committed other rows keeps them: for one start."""
    checkpoint: str | None = None
    codec: Codec = Codec.NONE
    batch_bytes: int = DEFAULT_BATCH_BYTES
    request_bytes_max: int = DEFAULT_REQUEST_BYTES_MAX
    in_flight: int = IN_FLIGHT_MAX
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    without_effect: tuple[str, ...] = ()
    """Options that begin with `kafka.` and that the sink does not know."""


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The sink's options. Raises OptionError."""
    options = lowered(given)
    connection = connection_of(options)
    _refuse(options)
    check_sink_names(given)
    guarantee = _guarantee(options)
    topic = (options.get("topic") or "").strip() or None
    identity = options.get("exactlyonceid")
    marker_topic = (options.get("markertopic") or "").strip() or topic
    if guarantee is not Guarantee.AT_LEAST_ONCE and marker_topic is None:
        raise OptionError(
            f"Option 'deliveryGuarantee' is '{guarantee}', and neither option 'topic' nor option "
            "'markerTopic' is set. Markers are offsets of a topic that exists. Set 'markerTopic' "
            "to one of the topics that the query writes."
        )
    known = HONOURED | PRODUCER_NAMES
    return SinkOptions(
        connection=connection,
        guarantee=guarantee,
        topic=topic,
        timestamp_column=(options.get("timestampcolumn") or "").strip() or None,
        task_headers=_flag(options, "taskHeaders"),
        identity=None if identity is None else check_identity(identity.strip()),
        marker_topic=marker_topic,
        accept_missing_markers=_flag(options, "acceptMissingMarkers"),
        accept_changed_rows=_accept_changed_rows(options, guarantee),
        checkpoint=options.get("checkpointlocation"),
        codec=_codec(options),
        batch_bytes=_number(options, "batch.size", DEFAULT_BATCH_BYTES),
        request_bytes_max=_number(options, "max.request.size", DEFAULT_REQUEST_BYTES_MAX),
        in_flight=min(
            IN_FLIGHT_MAX,
            _number(options, "max.in.flight.requests.per.connection", IN_FLIGHT_MAX),
        ),
        buffer_bytes=_number(options, "buffer.memory", DEFAULT_BUFFER_BYTES),
        delivery_timeout_ms=_number(options, "delivery.timeout.ms", DEFAULT_DELIVERY_TIMEOUT_MS),
        transaction_timeout_ms=_number(
            options, "transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS
        ),
        without_effect=tuple(
            sorted(
                key
                for key in options
                if key.startswith(PREFIX)
                and (name := key.removeprefix(PREFIX)) not in known
                and not is_security_key(name)
            )
        ),
    )


def refuse_overwrite() -> OptionError:
    """For batch writes with mode overwrite."""
    return OptionError(
        "Save mode Overwrite not allowed for Kafka. Allowed save modes are Append and "
        "ErrorIfExists (default). Call mode('append')."
    )


def refuse_batch_exactly_once() -> OptionError:
    """A batch write has no batch id to compare a marker with."""
    return OptionError(
        "Option 'deliveryGuarantee' is 'exactly-once', but this is a batch write: it has no batch "
        "id, so a task that runs twice cannot recognise its rows. Use 'atomic-batch', which makes "
        "all rows of the write visible at once or none, or 'at-least-once'."
    )


def _guarantee(options: Mapping[str, str]) -> Guarantee:
    text = options.get("deliveryguarantee", Guarantee.AT_LEAST_ONCE.value).strip().lower()
    try:
        return Guarantee(text)
    except ValueError:
        known = ", ".join(f"'{each}'" for each in Guarantee)
        raise OptionError(
            f"Option 'deliveryGuarantee' is '{text}', which is unknown. Use one of {known}."
        ) from None


def _refuse(options: Mapping[str, str]) -> None:
    if client_name(options, "key.serializer") is not None:
        raise OptionError(
            "Kafka option 'key.serializer' is not supported as keys are serialized with "
            "ByteArraySerializer. Remove the option."
        )
    if client_name(options, "value.serializer") is not None:
        raise OptionError(
            "Kafka option 'value.serializer' is not supported as value are serialized with "
            "ByteArraySerializer. Remove the option."
        )
    if client_name(options, "transactional.id") is not None:
        raise OptionError(
            "Option 'kafka.transactional.id' is not supported: the sink gives each task a "
            "transactional id of its own. Remove it, and set option 'deliveryGuarantee' to "
            "'exactly-once' or 'atomic-batch'."
        )
    for name in ("interceptor.classes", "partitioner.class"):
        if client_name(options, name) is not None:
            raise OptionError(
                f"Option 'kafka.{name}' is not supported: format 'mqd' runs no Java classes. "
                "Remove it. The column 'partition' chooses the partition of a row."
            )


def _accept_changed_rows(options: Mapping[str, str], guarantee: Guarantee) -> bool:
    accept = _flag(options, "acceptChangedRows")
    if accept and guarantee is Guarantee.AT_LEAST_ONCE:
        raise OptionError(
            f"Option 'acceptChangedRows' is 'true', but option 'deliveryGuarantee' is "
            f"'{guarantee}', which compares no rows. Remove 'acceptChangedRows'; it is for one "
            "start of a query with 'exactly-once' or 'atomic-batch'."
        )
    return accept


def _codec(options: Mapping[str, str]) -> Codec:
    text = (client_name(options, "compression.type") or "none").strip().lower()
    try:
        return Codec[text.upper()]
    except KeyError:
        known = ", ".join(f"'{each.name.lower()}'" for each in Codec)
        raise OptionError(
            f"Option 'kafka.compression.type' is '{text}', which is unknown. Use one of {known}."
        ) from None


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = client_name(options, name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise OptionError(
            f"Option 'kafka.{name}' must be a positive whole number, but it is '{text}'."
        )
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "false").strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"Option '{name}' must be 'true' or 'false', but it is '{text}'.")
    return text == "true"


# -- columns


class Columns(NamedTuple):
    """Which columns of the data the sink writes. `timestamp` is the column's name, or None."""

    key: bool
    headers: bool
    topic: bool
    partition: bool
    timestamp: str | None


def columns_of(fields: Iterable[tuple[str, str]], options: SinkOptions) -> Columns:
    """The columns of a schema, given as names and Spark's simple type names. Raises OptionError."""
    types = dict(fields)
    if options.topic is None and "topic" not in types:
        raise OptionError(
            "topic option required when no 'topic' attribute is present. Use the topic "
            "option for setting a topic."
        )
    if "value" not in types:
        raise OptionError(
            "Required attribute 'value' not found. Add a column 'value' of type string or binary."
        )
    for name, allowed in COLUMN_TYPES.items():
        if name in types and not (name == "topic" and options.topic is not None):
            _check_type(name, types[name], allowed)
    stamp = options.timestamp_column
    if stamp is not None:
        if stamp not in types:
            raise OptionError(
                f"Option 'timestampColumn' is '{stamp}', but the data has no such column. It "
                f"has: {', '.join(types)}."
            )
        _check_type(stamp, types[stamp], TIMESTAMP_TYPES)
    return Columns(
        key="key" in types,
        headers="headers" in types,
        topic=options.topic is None,
        partition="partition" in types,
        timestamp=stamp,
    )


def _check_type(name: str, found: str, allowed: tuple[str, ...]) -> None:
    if found not in allowed:
        raise OptionError(
            f"{name} attribute unsupported type {found}. {name} must be a(n) "
            f"{' or '.join(allowed)}. Cast the column."
        )

"""The options of producers as values. Names and defaults are those of Kafka's producer, mostly.
They are checked at construction: ValueError or TypeError. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mqd import limits
from mqd.client.arguments import (
    INT32_MAX,
    as_codec,
    check_above_zero,
    check_choice,
    check_flag,
    check_id,
    check_number,
    check_parameters,
    check_whole,
)
from mqd.client.errors import InvalidValue
from mqd.client.partitioner import Partitioner
from mqd.errors import ErrorCode
from mqd.protocol.compression import Codec

Acks = Literal[0, 1, -1, "all"]
CodecName = Literal["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingOptions:
    """The options that every producer of records has."""

    codec: Codec | CodecName = Codec.NONE
    """The compression of batches; stored as a Codec."""
    partitioner: Partitioner | None = None
    """Chooses the partition of a record that names none. None: murmur2 of the key, as in Java's
    client, and sticky partitions without a key."""
    linger_ms: float = 0.0
    """The time that a record waits for others, if no batch of its partition is in flight."""
    batch_bytes: int = limits.PRODUCER_BATCH_BYTES
    """A batch is sent when it has this many bytes, before compression."""
    buffer_bytes_max: int = limits.PRODUCER_BUFFER_BYTES_MAX
    """The number of bytes that may wait for acknowledgements; `enqueue` waits for room."""
    delivery_timeout_s: float = 120.0
    """A record is acknowledged or fails within this time."""
    unknown_topic_grace_s: float = 5.0
    """A missing topic is an error after this time, which its automatic creation may take."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "codec", as_codec(self.codec))
        parameters = ("topic", "key", "partitions", "available")
        check_parameters("partitioner", self.partitioner, parameters)
        check_number("linger_ms", self.linger_ms, 0)
        check_whole("batch_bytes", self.batch_bytes, 1, limits.REQUEST_BYTES_MAX // 2)
        check_whole("buffer_bytes_max", self.buffer_bytes_max, 0, 2**63 - 1)
        check_above_zero("delivery_timeout_s", self.delivery_timeout_s)
        check_number("unknown_topic_grace_s", self.unknown_topic_grace_s, 0)

    @property
    def buffer_bytes(self) -> int:
        """`buffer_bytes_max`, but room for at least one batch and one request."""
        return max(self.buffer_bytes_max, self.batch_bytes, limits.PRODUCER_REQUEST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(SendingOptions):
    """The options of `open_producer`, which takes them as keyword arguments."""

    acks: Acks = "all"
    """"all" or -1: every in-sync replica has the record. 1: the leader has it. 0: no response."""
    idempotent: bool | None = None
    """Store each record once, however often it is sent (KIP-98). None: on with acks=all."""

    def __post_init__(self) -> None:
        SendingOptions.__post_init__(self)
        check_choice("acks", self.acks, ("all", -1, 1, 0))
        if self.idempotent is not None:
            check_flag("idempotent", self.idempotent)
        if self.idempotent and not self.acks_all:
            message = f"idempotent is True, and acks is {self.acks!r}"
            remedy = "use acks='all', or idempotent=False"
            raise InvalidValue(ErrorCode.INVALID_REQUIRED_ACKS, message, remedy=remedy)

    @property
    def acks_all(self) -> bool:
        return self.acks in ("all", -1)


@dataclass(frozen=True, slots=True)
class TransactionalOptions(SendingOptions):
    """The options of `open_transactional_producer`, which takes them as arguments."""

    transactional_id: str
    """One for each process that writes, and the same after its restart."""
    transaction_timeout_ms: int = 60_000
    """The coordinator aborts a transaction that takes longer."""
    timeout_s: float = 60.0
    """The bound of each call to the coordinator."""
    close_timeout_s: float = 5.0
    """The bound of the abort when an exception or a cancellation leaves a transaction."""
    leave: bool = True
    """Abort an open transaction at the end of the block. False: disappear as a crash would."""

    def __post_init__(self) -> None:
        SendingOptions.__post_init__(self)
        check_id("transactional_id", self.transactional_id, "copier-1")
        check_whole("transaction_timeout_ms", self.transaction_timeout_ms, 1, INT32_MAX)
        check_above_zero("timeout_s", self.timeout_s)
        check_number("close_timeout_s", self.close_timeout_s, 0)
        check_flag("leave", self.leave)

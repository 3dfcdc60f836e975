"""The options of `open_share_consumer` as one value, checked at construction. Pure.

Names and defaults are those of Kafka's share consumer, where it has the option.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from mqd import limits
from mqd.client.arguments import (
    check_above_zero,
    check_callable,
    check_choice,
    check_id,
    check_number,
    check_optional_text,
    check_topics,
    check_whole,
)
from mqd.client.errors import AcknowledgementFailed, invalid_value

AcknowledgementMode = Literal["implicit", "explicit"]
AcquireMode = Literal["batch_optimized", "record_limit"]
FailureCallback = Callable[[AcknowledgementFailed], None]
"""A function that receives the failure of an acknowledgement that no call waits for."""


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """The options of a share consumer. Raises InvalidValue (a ValueError) or InvalidType (a
    TypeError).

    `open_share_consumer(client, "billing", ["orders"], mode="explicit")` takes them as arguments.
    """

    group_id: str
    """The share group that the member joins."""
    topics: Sequence[str]
    """Topics to read, by name; stored as a sorted tuple. A topic may be created later."""
    _: KW_ONLY
    mode: AcknowledgementMode = "implicit"
    """"implicit": a record is accepted when the next one is taken, unless the program has
    acknowledged it. "explicit": the program acknowledges each record."""
    acquire_mode: AcquireMode = "batch_optimized"
    """"batch_optimized": whole record batches, and more before they are needed. "record_limit"
    (KIP-1206): at most `max_records`, and only when a call waits for them."""
    max_records: int = 500
    """Records of one fetch (max.poll.records), rounded up to a whole batch if batch_optimized."""
    rack: str | None = None
    """The rack of this client."""
    max_wait_ms: int = 500
    """The maximum time that a broker waits until there is a record."""
    min_bytes: int = 1
    max_bytes: int = limits.CONSUMER_FETCH_BYTES
    """The size of a response to one fetch, about."""
    acknowledge_linger_ms: int = 100
    """The maximum time that acknowledgements wait for others, if no call waits for them."""
    on_acknowledgement_failed: FailureCallback | None = None
    """Called with each failure of an acknowledgement that no call waits for."""
    close_timeout_s: float = 5.0
    """The bound of the last acknowledgements and the leave at the end of the block."""
    timeout_s: float = 30.0
    """The bound of `flush`."""

    def __post_init__(self) -> None:
        check_id("group_id", self.group_id, "billing")
        object.__setattr__(self, "topics", tuple(sorted(check_topics("topics", self.topics))))
        if not self.topics:
            message = f"share group {self.group_id!r} has nothing to read"
            raise invalid_value(message, "give at least one topic")
        check_choice("mode", self.mode, ("implicit", "explicit"))
        check_choice("acquire_mode", self.acquire_mode, ("batch_optimized", "record_limit"))
        check_optional_text("rack", self.rack, "rack-1")
        check_whole("max_records", self.max_records, 1)
        check_whole("max_bytes", self.max_bytes, 1)
        for name in ("max_wait_ms", "min_bytes", "acknowledge_linger_ms"):
            check_whole(name, getattr(self, name), 0)
        check_callable("on_acknowledgement_failed", self.on_acknowledgement_failed)
        check_number("close_timeout_s", self.close_timeout_s, 0)
        check_above_zero("timeout_s", self.timeout_s)

    @property
    def is_record_limit(self) -> bool:
        return self.acquire_mode == "record_limit"

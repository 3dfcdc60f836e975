"""The result of a decision of the controller (Kafka's ControllerResult)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mqd.controller.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class ControllerResult:
    """Append `records`, and return `reply` once they are committed.

    A result without records still waits for every record that its reply is based on. With `more`
    it is a portion: once it is committed, the same operation is decided again, and so on. The last
    reply counts.
    """

    records: tuple[MetadataRecord, ...] = ()
    reply: Any = None
    more: bool = False

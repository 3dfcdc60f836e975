"""Where to read from, as a user names it, and as an offset: Kafka's OffsetSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqd.client.admin import Admin
from mqd.client.arguments import (
    INT64_MAX,
    check_above_zero,
    check_choice,
    check_flag,
    shown,
)
from mqd.client.cluster import ClusterClient, check_client
from mqd.client.descriptions import LATEST, PLACES, ListedOffset, Place
from mqd.client.errors import ClientError, invalid_type, invalid_value
from mqd.client.group_options import RESETS
from mqd.client.resource_arguments import check_by_partition
from mqd.types import TopicPartition


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after a time, in milliseconds since 1970; the log end without one."""

    timestamp_ms: int


OffsetSpec = int | Place | AtTime
"""Where to start or stop: an offset, an end of the log as it is now, or a time. Kafka's "earliest"
and "latest" mean "beginning" and "end".
"""


def check_reset(reset: object) -> None:
    """Raises InvalidValue or InvalidType."""
    check_choice("reset", reset, RESETS)


def check_offset_spec(tp: TopicPartition, spec: object) -> None:
    """Raises InvalidValue or InvalidType."""
    allowed = "give an offset from 0 on, 'beginning', 'end' or AtTime(milliseconds)"
    if isinstance(spec, str):
        if spec not in PLACES:
            raise invalid_value(f"{shown(spec)} is no offset of {tp}", allowed)
        return
    number = spec.timestamp_ms if isinstance(spec, AtTime) else spec
    if isinstance(number, bool) or not isinstance(number, int):
        raise invalid_type(f"{shown(spec)} is no offset of {tp}", allowed)
    if not 0 <= number <= INT64_MAX:
        raise invalid_value(f"{shown(spec)} is no offset of {tp}", allowed)


def check_offset_specs(name: str, specs: object) -> None:
    """Places by partition. Raises InvalidValue or InvalidType."""
    check_by_partition(name, specs, "'beginning'")
    assert isinstance(specs, Mapping)
    for tp, spec in specs.items():
        check_offset_spec(tp, spec)


async def resolve_offsets(
    client: ClusterClient,
    specs: Mapping[TopicPartition, OffsetSpec],
    *,
    timeout_s: float = 30.0,
    read_committed: bool = False,
) -> dict[TopicPartition, int]:
    """Each spec as an offset, by the logs as they are now. Raises the first ClientError.

    With `read_committed`, the end is the last stable offset.
    """
    check_client(client)
    check_offset_specs("specs", specs)
    check_above_zero("timeout_s", timeout_s)
    check_flag("read_committed", read_committed)
    resolved = {tp: spec for tp, spec in specs.items() if isinstance(spec, int)}
    timestamps = {tp: _timestamp(spec) for tp, spec in specs.items() if not isinstance(spec, int)}
    admin = Admin(client, timeout_s=timeout_s)
    found = await _list_offsets(admin, timestamps, read_committed)
    # A time after the last record has no offset: there the log end is meant.
    late = {tp: LATEST for tp, listed in found.items() if listed.offset < 0}
    found.update(await _list_offsets(admin, late, read_committed))
    resolved.update({tp: listed.offset for tp, listed in found.items()})
    return {tp: resolved[tp] for tp in specs}


def _timestamp(spec: Place | AtTime) -> int:
    """The timestamp of ListOffsets that means this spec."""
    return spec.timestamp_ms if isinstance(spec, AtTime) else PLACES[spec]


async def _list_offsets(
    admin: Admin, timestamps: Mapping[TopicPartition, int], read_committed: bool
) -> dict[TopicPartition, ListedOffset]:
    if not timestamps:
        return {}
    listed: dict[TopicPartition, ListedOffset] = {}
    outcomes = await admin.list_offsets(timestamps, read_committed=read_committed)
    for tp, outcome in outcomes.items():
        if isinstance(outcome, ClientError):
            raise outcome
        listed[tp] = outcome
    return listed

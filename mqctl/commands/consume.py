"""mqctl consume: read records of topics."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import (
    Failure,
    ReaderGone,
    Settings,
    connection_options,
    flush,
    run,
    settings_of,
    write,
)

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.consumer import Consumer
    from mqd.client.offset_specs import OffsetSpec
    from mqd.types import TopicPartition

OUTPUTS = ("text", "table", "json", "jsonl", "yaml")
_IDLE_SECONDS = 3.0
_ASSIGNED_SECONDS = 0.1
"""Before the assignment, look for it so often."""
_OF_THE_GROUP = {
    "start": "--from",
    "stop": "--to",
    "partitions": "--partitions",
    "read_committed": "--read-committed",
}
"""Options that a share group decides."""
_TABLE = "{partition:>4}  {offset:>12}  {timestamp:24}  {key:24}  {value}\n"


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "--from",
    "start",
    default="beginning",
    show_default=True,
    metavar="PLACE",
    help=f"First offset: {places.PLACE_FORMS}. {places.TIME_FORMS}",
)
@click.option(
    "--to",
    "stop",
    metavar="PLACE",
    help="End offset (exclusive), in the same forms; end is the current log end.",
)
@click.option(
    "-p", "--partitions", metavar="N,..", help="Only these partitions, for example 0,2,5-7."
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records."
)
@click.option(
    "--follow/--exit-at-end",
    "-F/-e",
    "follow",
    default=True,
    help="Wait for more records, or stop at the current log end. [default: --follow]",
)
@click.option(
    "-f",
    "--format",
    "text_format",
    metavar="FORMAT",
    help=r"Format of a record: %t topic, %p partition, %o offset, %k key, %v value, %h headers, "
    r"%T timestamp, %K and %V lengths of key and value. %k{hex} is the key in hex. "
    r"[default: %v\n]",
)
@click.option(
    "--read-committed",
    is_flag=True,
    help="Read only committed records, up to the last stable offset.",
)
@click.option(
    "--share-group",
    metavar="GROUP",
    help="Read as a member of a share group: each record goes to one member.",
)
@click.option(
    "--accept",
    is_flag=True,
    help="With --share-group: accept each printed record. [default]",
)
@click.option(
    "--release",
    is_flag=True,
    help="With --share-group: release each printed record, so that it is delivered again.",
)
@click.option(
    "--reject",
    is_flag=True,
    help="With --share-group: reject each printed record: it is not delivered again.",
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.0),
    metavar="SECONDS",
    help="With --share-group: stop after so long without a record. [default: never; 3 with -e]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    help="Output format: text (see --format), a table, or complete records. [default: text]",
)
@connection_options
def consume(
    topics: tuple[str, ...],
    start: str,
    stop: str | None,
    partitions: str | None,
    count: int | None,
    follow: bool,
    text_format: str | None,
    read_committed: bool,
    share_group: str | None,
    accept: bool,
    release: bool,
    reject: bool,
    idle: float | None,
    output: str | None,
    bootstrap: str | None,
    timeout: float | None,
    command_config: str | None,
    profile: str | None,
) -> None:
    """Read records from topics and print them, in order within each partition.

    \b
    mqctl consume orders                          all records, then new ones
    mqctl consume orders -e -f '%p %o %k=%v\\n'    all records up to the log end
    mqctl consume orders --from -10 -e            from ten before the log end of each partition
    mqctl consume orders --from @-15m -o jsonl    the last 15 minutes, then new ones, as JSON lines
    mqctl consume orders --share-group billing    as a member of a share group, accepting each
    """
    settings = settings_of(
        bootstrap,
        output,
        timeout,
        command_config=command_config,
        profile=profile,
        default_output="text",
    )
    if text_format is not None and settings.output != "text":
        raise click.UsageError("--format requires -o text")
    flags = {"accept": accept, "release": release, "reject": reject}
    chosen = [name for name, is_set in flags.items() if is_set]
    if len(chosen) > 1:
        raise click.UsageError("specify one of --accept, --release and --reject")
    acknowledge = chosen[0] if chosen else None
    _check_share_options(share_group, acknowledge, idle)
    now_ms = int(time.time() * 1000)
    try:
        first = places.parse_place(start, now_ms)
        last = (
            places.parse_place(stop, now_ms)
            if stop is not None
            else None
            if follow
            else places.Place(word="end")
        )
        only = places.parse_partitions(partitions) if partitions is not None else None
        printer = printer_for(settings.output, text_format)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def work(client: ClusterClient) -> int:
        from mqd.client.consumer import open_consumer
        from mqd.client.offset_specs import resolve_offsets

        tps = await _choose(client, topics, only, settings)
        starts = await _places(client, tps, first, settings, read_committed)
        ends = None
        if last is not None:
            targets = await _places(client, tps, last, settings, read_committed)
            ends = await resolve_offsets(
                client, targets, timeout_s=settings.timeout_s, read_committed=read_committed
            )
            _check_range(first, ends)
        printer.begin()
        reset: Any = "error" if first.offset is not None else "beginning"
        async with open_consumer(
            client,
            starts,
            end=ends,
            read_committed=read_committed,
            reset=reset,
            timeout_s=settings.timeout_s,
        ) as consumer:
            return await _pump(consumer, printer, count)

    async def share(client: ClusterClient) -> int:
        assert share_group is not None
        await _choose(client, topics, None, settings)
        printer.begin()
        bound = idle if idle is not None else math.inf if follow else _IDLE_SECONDS
        return await _pump_shared(
            client,
            share_group,
            topics,
            printer,
            count,
            acknowledge or "accept",
            bound,
            settings.timeout_s,
        )

    try:
        run(settings, work if share_group is None else share)
    except KeyboardInterrupt:
        if count is not None or last is not None or idle is not None:
            raise
    finally:
        with suppress(ReaderGone):
            printer.end()


def _check_share_options(
    share_group: str | None, acknowledge: str | None, idle: float | None
) -> None:
    context = click.get_current_context()
    if share_group is None:
        if acknowledge is not None or idle is not None:
            raise click.UsageError("--accept, --release, --reject and --idle need --share-group")
        return
    for name, option in _OF_THE_GROUP.items():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(
                f"{option} is not possible with --share-group: the group decides. Set"
                " share.auto.offset.reset or share.isolation.level with `mqctl group config set`"
            )


def _check_range(first: places.Place, ends: dict[TopicPartition, int]) -> None:
    for tp, end in ends.items():
        if first.offset is not None and first.offset > end:
            raise Failure(
                f"offset {first.offset} is beyond the log end of {tp}, which is {end}",
                remedy="choose an offset within the log, or --from -10 for the last ten records",
            )


async def _choose(
    client: ClusterClient, topics: tuple[str, ...], only: list[int] | None, settings: Settings
) -> list[TopicPartition]:
    from mqd.client.admin import Admin
    from mqd.client.errors import ClientError
    from mqd.types import TopicPartition

    tps = []
    for name, described in (
        await Admin(client, timeout_s=settings.timeout_s).describe_topics(topics)
    ).items():
        if isinstance(described, ClientError):
            raise described
        existing = [each.partition for each in described.partitions]
        for partition in only if only is not None else existing:
            if partition not in existing:
                raise Failure(
                    f"topic {name!r} has no partition {partition}",
                    remedy=f"its partitions are 0 to {len(existing) - 1}",
                )
            tps.append(TopicPartition(name, partition))
    return tps


async def _places(
    client: ClusterClient,
    tps: list[TopicPartition],
    place: places.Place,
    settings: Settings,
    read_committed: bool,
) -> dict[TopicPartition, OffsetSpec]:
    """The client's offset specification of `place` for each partition.

    With `read_committed`, the end is the last stable offset.
    """
    from mqd.client.offset_specs import AtTime, resolve_offsets

    if place.timestamp_ms is not None:
        return dict.fromkeys(tps, AtTime(place.timestamp_ms))
    if place.before_end is not None:
        beginnings = await resolve_offsets(
            client, dict.fromkeys(tps, "beginning"), timeout_s=settings.timeout_s
        )
        ends = await resolve_offsets(
            client,
            dict.fromkeys(tps, "end"),
            timeout_s=settings.timeout_s,
            read_committed=read_committed,
        )
        return {tp: max(beginnings[tp], ends[tp] - place.before_end) for tp in tps}
    found: OffsetSpec = place.offset if place.offset is not None else place.word or "beginning"
    return dict.fromkeys(tps, found)


async def _pump(consumer: Consumer, printer: Printer, count: int | None) -> int:
    written = 0
    async for batch in consumer:
        records = list(batch.records if count is None else batch.records[: count - written])
        printer.write(batch.topic, batch.partition, records)
        written += len(records)
        if written == count:
            break
    return written


async def _pump_shared(
    client: ClusterClient,
    group: str,
    topics: tuple[str, ...],
    printer: Printer,
    count: int | None,
    acknowledge: str,
    idle_s: float,
    timeout_s: float,
) -> int:
    """Print records as a member of a share group, and acknowledge each one after it is printed.

    Stops after `count` records, or `idle_s` seconds without one: they begin after the coordinator
    has assigned partitions, or after `timeout_s` without an assignment.
    """
    import trio

    from mqd.client.share_consumer import open_share_consumer

    written = 0
    async with open_share_consumer(
        client,
        group,
        topics,
        mode="explicit",
        acquire_mode="batch_optimized" if count is None else "record_limit",
        max_records=500 if count is None else min(count, 500),
    ) as consumer:
        assigned_by = trio.current_time() + timeout_s
        while written != count:
            record = None
            counts = bool(consumer.assignment()) or trio.current_time() >= assigned_by
            with trio.move_on_after(idle_s if counts else min(idle_s, _ASSIGNED_SECONDS)):
                record = await consumer.next()
            if record is None and counts:
                break
            if record is None:
                continue
            printer.write(record.topic, record.partition, [record])
            getattr(record, f"{acknowledge}_soon")()
            written += 1
        await consumer.flush()
    return written


class Printer:
    """Writes records to standard output as they arrive."""

    def __init__(
        self, opening: str, between: str, closing: str, one: Callable[[str, int, Any], str | bytes]
    ) -> None:
        self._opening = opening
        self._between = between
        self._closing = closing
        self._one = one
        self._begun = False
        self._first = True

    def begin(self) -> None:
        """Write the heading, unless it is written: after all that may be refused."""
        if not self._begun:
            self._begun = True
            write(self._opening)

    def write(self, topic: str, partition: int, records: list[Any]) -> None:
        written = [self._one(topic, partition, record) for record in records]
        if not written:
            return
        self.begin()
        if not self._first:
            write(self._between)
        self._first = False
        for index, each in enumerate(written):
            if index and self._between:
                write(self._between)
            write(each)
        flush()

    def end(self) -> None:
        if self._begun:
            write(self._closing)
            flush()


def printer_for(output: str, text_format: str | None) -> Printer:
    """The printer of an output. ValueError for an invalid format."""
    from mqctl.records import compile_format, to_envelope

    if output == "text":
        return Printer(
            "",
            "",
            "",
            compile_format(
                text_format if text_format is not None else r"%v\n", inert=sys.stdout.isatty()
            ),
        )
    if output == "jsonl":
        return Printer(
            "", "", "", lambda *record: render.to_json(to_envelope(*record), indent=None)
        )
    if output == "json":
        return Printer(
            "[\n",
            ",\n",
            "\n]\n",
            lambda *record: render.to_json(to_envelope(*record), indent=None).rstrip("\n"),
        )
    if output == "yaml":
        return Printer("", "", "", lambda *record: render.to_yaml([to_envelope(*record)]))
    titles = _TABLE.format(
        partition="PART", offset="OFFSET", timestamp="TIMESTAMP", key="KEY", value="VALUE"
    )
    return Printer(titles, "", "", _row)


def _row(topic: str, partition: int, record: Any) -> str:
    def shown(data: bytes | None) -> str:
        return "-" if data is None else render.printable(data.decode(errors="backslashreplace"))

    time_text = places.format_time(record.timestamp)
    key = shown(record.key)
    return _TABLE.format(
        partition=partition,
        offset=record.offset,
        timestamp=time_text,
        key=key,
        value=shown(record.value),
    )

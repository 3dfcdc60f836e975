"""mqctl txn: list, describe, abort and fence transactions, and find hanging ones (KIP-664)."""

from __future__ import annotations

import shlex
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import Failure, LazyGroup, Settings, confirm, options, print_message, run, write
from mqctl.outcomes import ListsByBroker, finish
from mqctl.planning import parse_partition
from mqctl.quantities import format_duration, parse_duration_ms
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import ActiveProducer
    from mqd.client.group_descriptions import (
        HangingTransactions,
        ListedTransaction,
        TransactionDescription,
    )

COMMANDS = {
    "list": (
        "mqctl.commands.txn:list_",
        "List transactional ids with their states and coordinators.",
    ),
    "describe": ("mqctl.commands.txn:describe", "Show open transactions and their partitions."),
    "find-hanging": ("mqctl.commands.txn:find_hanging", "Find hanging transactions."),
    "abort": ("mqctl.commands.txn:abort", "Abort a hanging transaction in one partition."),
    "fence": ("mqctl.commands.txn:fence", "Fence the producers of transactional ids."),
}

TRANSACTIONS = (
    render.Column("transactional_id", "TRANSACTIONAL-ID"),
    render.Column("producer_id", "PRODUCER", right=True),
    render.Column("state", "STATE"),
    render.Column("prepared", "PREPARED"),
    render.Column("coordinator", "COORDINATOR", right=True),
)
HANGING = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("start_offset", "START", right=True),
    render.Column("producer_id", "PRODUCER", right=True),
    render.Column("producer_epoch", "EPOCH", right=True),
    render.Column("last_active", "LAST-ACTIVE"),
    render.Column("transactional_id", "TRANSACTIONAL-ID"),
)
FENCED = (
    render.Column("transactional_id", "TRANSACTIONAL-ID"),
    render.Column("producer_id", "PRODUCER", right=True),
    render.Column("producer_epoch", "EPOCH", right=True),
)
STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States with an open transaction. Brokers also list ids without one when they filter by age."""


class Duration(click.ParamType[int]):
    """`90s`, `15m`, `2h` as milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def txn() -> None:
    """Show transactions; find and abort hanging ones."""


def _admin(client: ClusterClient, settings: Settings, *, patient: bool = True) -> Admin:
    from mqd.client.admin import Admin

    return Admin(client, timeout_s=settings.timeout_s, patient=patient)


@click.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only ids in this state; repeatable.",
)
@click.option(
    "--longer-than",
    type=Duration(),
    metavar="DURATION",
    help="Only ids whose transaction has been open for longer. DURATION is 90s, 15m, 2h or 7d.",
)
@click.option(
    "--prepared",
    is_flag=True,
    help="Only ids whose transaction is prepared, and waits for an external coordinator of a "
    "two-phase commit (KIP-939).",
)
@options
def list_(
    settings: Settings,
    pattern: str | None,
    states: tuple[str, ...],
    longer_than: int | None,
    prepared: bool,
) -> None:
    """List all transactional ids, or those that match PATTERN (* and ?).

    \b
    mqctl txn list --state Ongoing --longer-than 5m
    mqctl txn list --prepared
    """

    async def work(client: ClusterClient) -> ListsByBroker[ListedTransaction]:
        return ListsByBroker(
            await _admin(client, settings, patient=False).list_transactions_by_node(
                states, longer_than_ms=longer_than
            )
        )

    listed = run(settings, work)
    rows = [
        {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer_id,
            "state": each.state,
            "prepared": each.prepared,
            "coordinator": each.node_id,
        }
        for each in listed.rows
        if (pattern is None or fnmatchcase(each.transactional_id, pattern))
        and (longer_than is None or each.state in OPEN_STATES)
        and (each.prepared or not prepared)
    ]
    if not rows and not listed.failed:
        narrowed = pattern is not None or states or longer_than is not None or prepared
        print_message("no transactional id matches" if narrowed else "no transactional ids")
    settings.show_found(TRANSACTIONS, rows)
    finish(listed.results)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@options
def describe(settings: Settings, names: tuple[str, ...]) -> None:
    """Show transactional ids with their producers, and open transactions with their partitions.

    \b
    mqctl txn describe billing-1
    """
    results = run(settings, lambda client: _admin(client, settings).describe_transactions(names))
    from mqd.client.errors import ClientError

    now_ms = time.time_ns() // 1_000_000
    found = [
        _described(each, now_ms) for each in results.values() if not isinstance(each, ClientError)
    ]
    if settings.output == "table":
        for index, each in enumerate(found):
            write("\n" if index else "")
            write(render.fields(each))
    else:
        settings.show((), found)
    finish(results)


def _described(each: TransactionDescription, now_ms: int) -> dict[str, Any]:
    ongoing = each.started_ms >= 0 and each.state in OPEN_STATES
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "prepared": each.owner is not None,
        "owner": f"{each.owner[0]}:{each.owner[1]}" if each.owner is not None else None,
        "timeout_ms": each.timeout_ms,
        "started": places.format_time(each.started_ms) if ongoing else None,
        "open_for": format_duration((now_ms - each.started_ms) / 1000) if ongoing else None,
        "partitions": [f"{tp.topic}:{tp.partition}" for tp in each.partitions],
        "coordinator": each.coordinator,
    }


@click.command("find-hanging")
@click.option(
    "-t",
    "--topic",
    "pattern",
    metavar="PATTERN",
    help="Only topics that match this pattern (* and ?); internal topics only by their names.",
)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Only partitions that broker ID leads.",
)
@click.option(
    "--older-than",
    type=Duration(),
    default="15m",
    show_default=True,
    metavar="DURATION",
    help="Only transactions older than DURATION (90s, 15m, 2h or 7d). Choose more than the longest "
    "transaction timeout.",
)
@options
def find_hanging(
    settings: Settings, pattern: str | None, broker_id: int | None, older_than: int
) -> None:
    """Find hanging transactions: open in a partition, but unknown to their coordinator.

    They block read_committed consumers and compaction of the partition. `mqctl txn abort` ends
    them.

    \b
    mqctl txn find-hanging
    mqctl txn find-hanging --topic 'orders*' --older-than 30m -o json
    """

    async def work(client: ClusterClient) -> tuple[list[TopicPartition], HangingTransactions]:
        admin = _admin(client, settings, patient=False)
        partitions = [
            TopicPartition(topic.name, each.partition)
            for topic in await admin.list_topics(internal=True)
            for each in topic.partitions
            if (fnmatchcase(topic.name, pattern) if pattern is not None else True)
            and broker_id in (None, each.leader)
        ]
        if not partitions:
            raise Failure(
                "no partition matches", remedy="list the partitions with `mqctl partition list`"
            )
        return partitions, await admin.find_hanging_transactions(
            partitions, older_than_ms=older_than
        )

    partitions, search = run(settings, work)
    rows = [
        {
            "topic": each.tp.topic,
            "partition": each.tp.partition,
            "start_offset": each.producer.transaction_start_offset,
            "producer_id": each.producer.producer_id,
            "producer_epoch": each.producer.producer_epoch,
            "coordinator_epoch": each.producer.coordinator_epoch,
            "last_active": places.format_time(each.producer.last_timestamp_ms),
            "transactional_id": each.transactional_id,
        }
        for each in search.found
    ]
    clear = len(partitions) - len(search.unclear)
    if not rows:
        print_message(
            "no hanging transactions"
            if not search.unclear
            else f"no hanging transactions in {clear} of {len(partitions)} partitions"
        )
    settings.show_found(HANGING, rows)
    for row in rows:
        print_message(
            f"mqctl txn abort {row['topic']}:{row['partition']} --start-offset "
            f"{row['start_offset']}"
        )
    finish({tp: search.unclear.get(tp) for tp in partitions})


@click.command()
@click.argument("partition", metavar="TOPIC:PARTITION")
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Start offset of the transaction, as shown by find-hanging.",
)
@click.option(
    "--producer-id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Producer of the transaction, instead of --start-offset.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Abort it even if its coordinator knows it, and may commit it in other partitions.",
)
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def abort(
    settings: Settings,
    partition: str,
    start_offset: int | None,
    producer_id: int | None,
    force: bool,
    yes: bool,
) -> None:
    """Abort a hanging transaction in one partition.

    Without --force, the command refuses a transaction that its coordinator knows. It would be
    aborted in this partition, but may be committed in others. `mqctl txn fence` aborts it in all
    partitions.

    \b
    mqctl txn abort orders:0 --start-offset 1042
    """
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("specify the transaction: --start-offset OFFSET or --producer-id ID")
    try:
        topic, index = parse_partition(partition)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if index is None:
        raise click.BadParameter(
            f"invalid partition {partition!r}: expected TOPIC:PARTITION, for example {partition}:0"
        )
    tp = TopicPartition(topic, index)

    async def look(client: ClusterClient) -> ActiveProducer:
        from mqd.client.errors import ClientError

        admin = _admin(client, settings)
        outcome = (await admin.describe_producers([tp]))[tp]
        if isinstance(outcome, ClientError):
            raise outcome
        for each in outcome:
            is_open = each.transaction_start_offset >= 0
            if (
                is_open
                and start_offset in (None, each.transaction_start_offset)
                and producer_id in (None, each.producer_id)
            ):
                known = None if force else await admin.find_transaction(tp, each.producer_id)
                if known is not None:
                    # any client may have named it
                    fence = f"mqctl txn fence {shlex.quote(known.transactional_id)}"
                    raise Failure(
                        f"producer {each.producer_id}'s transaction in {partition} is not "
                        "hanging: the coordinator of transactional id"
                        f" {known.transactional_id!r} knows it ({known.state}), and may commit it "
                        "in other partitions",
                        remedy=f"abort it in all partitions with `{fence}`, or only in this one "
                        "with --force",
                    )
                return each
        wanted = (
            f"at offset {start_offset}"
            if start_offset is not None
            else f"of producer {producer_id}"
        )
        raise Failure(
            f"no open transaction {wanted} in {partition}",
            remedy="list hanging transactions with `mqctl txn find-hanging`",
        )

    found = run(settings, look)
    confirm(
        f"This aborts the transaction of producer {found.producer_id} (epoch "
        f"{found.producer_epoch}) that starts at offset "
        f"{found.transaction_start_offset} of {partition}: read_committed consumers will never see "
        "its records there.",
        yes=yes,
    )

    async def work(client: ClusterClient) -> None:
        admin = _admin(client, settings)
        await admin.abort_transaction(
            tp, found.producer_id, found.producer_epoch, max(found.coordinator_epoch, 0)
        )

    run(settings, work)
    row = {
        "topic": topic,
        "partition": index,
        "producer_id": found.producer_id,
        "start_offset": found.transaction_start_offset,
    }
    if settings.output == "table":
        print_message(f"the transaction of producer {found.producer_id} in {partition} was aborted")
    else:
        settings.show((), [row])


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TRANSACTIONAL_ID...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def fence(settings: Settings, names: tuple[str, ...], yes: bool) -> None:
    """Fence the producers of transactional ids: abort their open transactions, reject their
    requests.

    An id without a producer is skipped, because fencing would create it.

    \b
    mqctl txn fence billing-1
    """
    confirm(
        f"This fences the producers of {', '.join(names)}: open transactions are aborted, and the "
        "producers must be restarted.",
        yes=yes,
    )

    async def work(client: ClusterClient) -> dict[str, Any]:
        from mqd.client.errors import ClientError

        admin = _admin(client, settings)
        described = await admin.describe_transactions(names)
        unknown = {
            name: outcome for name, outcome in described.items() if isinstance(outcome, ClientError)
        }
        known = [name for name in described if name not in unknown]
        fenced = await admin.fence_producers(known) if known else {}
        return {name: unknown[name] if name in unknown else fenced[name] for name in described}

    results = run(settings, work)
    rows = [
        {"transactional_id": name, "producer_id": made[0], "producer_epoch": made[1]}
        for name, made in results.items()
        if isinstance(made, tuple)
    ]
    settings.show_found(FENCED, rows)
    finish(results)

"""mqctl partition move-status and move-cancel: the moves in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mqctl import render
from mqctl.app import Settings, options, print_message, run
from mqctl.commands.move import end_with, run_watching
from mqctl.commands.partition import expand
from mqctl.moving import (
    reassignment_rows,
    unthrottle,
    watch,
)
from mqctl.outcomes import finish
from mqctl.planning import (
    parse_partition,
)
from mqctl.quantities import format_bytes
from mqctl.snapshot import moves_in_progress, sizes, take_snapshot
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.errors import ClientError

MOVES = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("replicas", "REPLICAS"),
    render.Column("adding", "ADDS"),
    render.Column("removing", "REMOVES"),
    render.Column("left", "LEFT", right=True),
    render.Column("stalled", "STALLED"),
)


CANCELLED = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("cancelled", "CANCELLED"),
)


@click.command("move-status")
@click.option(
    "--wait",
    is_flag=True,
    help="Show progress, wait until all moves are done, then remove the throttle.",
)
@click.option(
    "--clear-throttle",
    is_flag=True,
    help="Remove all replication throttles, also those set by others; moves continue at full "
    "speed.",
)
@options
def move_status(settings: Settings, wait: bool, clear_throttle: bool) -> None:
    """Show the moves in progress.

    If a throttle is still set after all moves are done, the command reports it. It would slow down
    the next replica that must catch up.

    \b
    mqctl partition move-status
    mqctl partition move-status --wait
    """

    async def work(client: ClusterClient, deadline: float) -> int:
        from mqd.client.admin import Admin
        from mqd.client.throttle import clear_throttle as clear, find_throttle

        admin = Admin(client, timeout_s=settings.timeout_s)
        snapshot = await take_snapshot(admin, deadline, min_isr=False)
        impatient = Admin(client, timeout_s=settings.timeout_s, patient=False)
        rows = (
            reassignment_rows(snapshot, await sizes(impatient, snapshot.alive, deadline))
            if snapshot.moves
            else []
        )
        if rows or settings.output != "table":
            settings.show(
                MOVES,
                [{**row, "left": format_bytes(row["bytes_left"])} for row in rows]
                if settings.output == "table"
                else rows,
            )
        if not rows:
            print_message("no moves in progress")
        if any(row["stalled"] for row in rows):
            print_message(
                "stalled moves continue when the broker is back; to restore the old replicas "
                "instead: `mqctl partition move-cancel`"
            )
        if wait and snapshot.moves:
            await watch(admin, snapshot.moves, list(snapshot.alive))
        if snapshot.moves and not wait and not clear_throttle:
            return 0
        throttled = await find_throttle(
            admin, sorted({tp.topic for tp in snapshot.partitions}), sorted(snapshot.alive)
        )
        if not throttled:
            if clear_throttle:
                print_message("no throttle is set")
            return 0
        what = ", ".join(
            [
                *(f"topic {name}" for name in throttled.topics),
                *(f"broker {broker_id}" for broker_id in throttled.brokers),
            ]
        )
        if clear_throttle:
            errors = await clear(admin, throttled)
            finish({resource: errors.get(resource) for resource in errors})
            print_message(f"throttle removed from {what}")
        elif wait:
            if await unthrottle(admin, throttled):
                print_message(f"throttle removed from {what}")
        else:
            print_message(f"a throttle is still set on {what}: remove it with --clear-throttle")
        return 0

    end_with(run_watching(settings, work, wait))


@click.command("move-cancel")
@click.argument("partitions", nargs=-1, metavar="[TOPIC[:PARTITION]...]")
@click.option("--all", "everything", is_flag=True, help="All moves in progress.")
@options
def move_cancel(settings: Settings, partitions: tuple[str, ...], everything: bool) -> None:
    """Cancel moves, and restore the previous replicas.

    Partial copies are deleted. When no moves remain, the throttle is removed, too.

    \b
    mqctl partition move-cancel orders:0
    mqctl partition move-cancel --all
    """
    if everything == bool(partitions):
        raise click.UsageError("specify partitions (TOPIC or TOPIC:PARTITION), or --all")
    try:
        named = [parse_partition(text) for text in partitions]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None

    async def work(client: ClusterClient) -> dict[TopicPartition, ClientError | None]:
        from mqd.client.admin import Admin
        from mqd.client.throttle import find_throttle

        admin = Admin(client, timeout_s=settings.timeout_s)
        moving = await moves_in_progress(admin)
        chosen = list(moving)
        if not everything:
            chosen = await expand(admin, named)
            whole = {topic for topic, index in named if index is None}
            chosen = [tp for tp in chosen if tp in moving or tp.topic not in whole]
        results = await admin.alter_partition_reassignments(dict.fromkeys(chosen))
        if any(error is None for error in results.values()) and not await moves_in_progress(admin):
            cluster = await admin.describe_cluster()
            alive = sorted(
                broker.node_id for broker in cluster.brokers if broker.node_id not in cluster.fenced
            )
            throttled = await find_throttle(admin, sorted({tp.topic for tp in chosen}), alive)
            if throttled:
                await unthrottle(admin, throttled)
        return dict(results)

    results = run(settings, work)
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "cancelled": error is None}
        for tp, error in results.items()
    ]
    if not rows:
        print_message("no moves in progress")
    settings.show_found(CANCELLED, rows)
    finish(results)

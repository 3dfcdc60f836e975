"""mqctl group lag: committed offsets and consumer lag."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Settings, options, print_message, run
from mqctl.groups import admin_of, list_groups
from mqctl.outcomes import ListsByBroker, finish
from mqd.errors import some_of
from mqd.relay.names import is_reserved

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.group_descriptions import ListedGroup, PartitionLag


LAGS = (
    render.Column("group", "GROUP"),
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("committed", "COMMITTED", right=True),
    render.Column("end", "END", right=True),
    render.Column("lag", "LAG", right=True),
    render.Column("expired", "EXPIRED", right=True),
    render.Column("given_up", "GIVEN-UP", right=True),
    render.Column("client", "CLIENT"),
    render.Column("host", "HOST"),
)
TOTALS = (
    render.Column("group", "GROUP"),
    render.Column("partitions", "PARTITIONS", right=True),
    render.Column("uncommitted", "UNCOMMITTED", right=True),
    render.Column("unknown", "UNKNOWN", right=True),
    render.Column("lag", "LAG", right=True),
    render.Column("expired", "EXPIRED", right=True),
    render.Column("given_up", "GIVEN-UP", right=True),
)


@click.command()
@click.argument("names", nargs=-1, metavar="[GROUP...]")
@click.option("--all", "everything", is_flag=True, help="All groups, except those of nodes.")
@click.option("--internal", is_flag=True, help="With --all: also groups of nodes (__mqd_relay.*).")
@click.option(
    "-t",
    "--topic",
    "pattern",
    metavar="PATTERN",
    help="Only topics that match this pattern (* and ?).",
)
@click.option("--total", is_flag=True, help="One line for each group.")
@click.option(
    "--read-committed",
    is_flag=True,
    help="Compute lag up to the last stable offset, not to the high watermark.",
)
@options
def lag(
    settings: Settings,
    names: tuple[str, ...],
    everything: bool,
    internal: bool,
    pattern: str | None,
    total: bool,
    read_committed: bool,
) -> None:
    """Show the committed offsets and the lag of groups.

    An assigned partition without a committed offset shows no lag. --total counts it under
    UNCOMMITTED.
    --all omits groups with neither assigned partitions nor committed offsets, and the groups of
    delay topics and dead letters: their lag does not count waiting records. COMMITTED of a share
    group is its start offset: the first record that is not done. EXPIRED counts the expired records
    that a share group did not get, GIVEN-UP those without a dead letter that members rejected, or
    got as often as allowed: both since the leader of the partition began to lead.

    \b
    mqctl group lag billing
    mqctl group lag --all --total -o json
    """
    if everything == bool(names):
        raise click.UsageError("specify groups, or --all")
    if internal and not everything:
        raise click.UsageError("--internal needs --all")

    async def work(client: ClusterClient) -> tuple[dict[str, Any], ListsByBroker[ListedGroup]]:
        listed = await list_groups(client, settings) if everything else ListsByBroker({})
        wanted = [
            *names,
            *(
                each.group_id
                for each in listed.rows
                if each.type in ("", "classic", "consumer", "share")
                and (internal or not is_reserved(each.group_id))
            ),
        ]
        return dict(
            await admin_of(client, settings, patient=not everything).group_lags(
                wanted, read_committed=read_committed
            )
        ), listed

    results, listed = run(settings, work)
    rows: list[dict[str, Any]] = []
    unknown: list[str] = []
    for name, outcome in results.items():
        if isinstance(outcome, list):
            lags = [
                each for each in outcome if pattern is None or fnmatchcase(each.tp.topic, pattern)
            ]
            if everything and not lags:
                continue
            rows += [_total(name, lags)] if total else [_lag_row(name, each) for each in lags]
            unknown += [f"{each.tp} (group {name!r})" for each in lags if each.end is None]
            if not lags:
                print_message(
                    f"group {name!r} has no committed offsets"
                    + ("" if pattern is None else " for such topics")
                )
    if everything and not rows and not listed.failed:
        print_message(
            "no group has assigned partitions or committed offsets"
            if pattern is None
            else "no group reads matching topics"
        )
    columns: tuple[render.Column, ...] = TOTALS if total else LAGS
    if all(row["expired"] is None for row in rows):  # only share groups have counts
        columns = tuple(each for each in columns if each.key not in ("expired", "given_up"))
    settings.show_found(columns, rows)
    if unknown:
        print_message(
            "lag is unknown where a partition was deleted, has no leader, or its leader does not "
            f"respond: {some_of(unknown, 5)}"
        )
    finish(listed.with_failures(results))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _total(name: str, lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "group": name,
        "partitions": len(lags),
        "uncommitted": sum(each.committed is None for each in lags),
        "unknown": sum(each.committed is not None and each.end is None for each in lags),
        "lag": sum(each.lag for each in lags if each.lag is not None),
        "expired": _sum([each.expired for each in lags]),
        "given_up": _sum([each.given_up for each in lags]),
    }


def _lag_row(name: str, each: PartitionLag) -> dict[str, Any]:
    return {
        "group": name,
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "committed": None if each.committed is None else each.committed.offset,
        "metadata": None if each.committed is None else each.committed.metadata or None,
        "start": each.start,
        "end": each.end,
        "lag": each.lag,
        "expired": each.expired,
        "given_up": each.given_up,
        "member": None if each.member is None else each.member.member_id,
        "client": None if each.member is None else each.member.client_id,
        "host": None if each.member is None else each.member.host,
    }

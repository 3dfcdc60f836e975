"""mqctl group: list and describe groups. The other commands are in group_*.py."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from mqctl import places, render
from mqctl.app import LazyGroup, Settings, options, print_message, run, write
from mqctl.groups import admin_of, by_topic, choose_groups, format_assignment, list_groups
from mqctl.outcomes import ListsByBroker, finish, without_match
from mqctl.quantities import format_duration
from mqd.relay.names import is_reserved

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.group_descriptions import GroupDescription, ListedGroup


COMMANDS = {
    "list": ("mqctl.commands.group:list_", "List groups with their states and coordinators."),
    "describe": (
        "mqctl.commands.group:describe",
        "Show the members of groups and their assignments.",
    ),
    "lag": ("mqctl.commands.group_lag:lag", "Show committed offsets and consumer lag."),
    "seek": ("mqctl.commands.group_seek:seek", "Reset the committed offsets of a group."),
    "config": (
        "mqctl.commands.group_config:config",
        "Show and change the configuration of a group.",
    ),
    "remove-member": ("mqctl.commands.group_delete:remove_member", "Remove members from a group."),
    "delete": ("mqctl.commands.group_delete:delete", "Delete groups and their offsets."),
    "delete-offsets": (
        "mqctl.commands.group_delete:delete_offsets",
        "Delete a group's committed offsets of topics.",
    ),
}

GROUPS = (
    render.Column("group", "GROUP"),
    render.Column("state", "STATE"),
    render.Column("type", "TYPE"),
    render.Column("protocol_type", "PROTOCOL"),
    render.Column("coordinator", "COORDINATOR", right=True),
)
MEMBERS = (
    render.Column("member", "MEMBER"),
    render.Column("instance", "INSTANCE"),
    render.Column("client", "CLIENT"),
    render.Column("host", "HOST"),
    render.Column("epoch", "EPOCH", right=True),
    render.Column("partitions", "PARTITIONS"),
)
STATES = (
    *("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Dead"),  # classic groups
    *("Assigning", "Reconciling", "NotReady"),  # the others
)
TYPES = ("classic", "consumer", "share", "streams")


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def group() -> None:
    """Show groups, members and lag; reset offsets; delete groups."""


@click.command("list")
@click.argument("pattern", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only groups in this state; repeatable.",
)
@click.option(
    "--type",
    "types",
    multiple=True,
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only groups of this type; repeatable.",
)
@click.option("--internal", is_flag=True, help="Also groups of nodes (__mqd_relay.*).")
@options
def list_(
    settings: Settings,
    pattern: str | None,
    states: tuple[str, ...],
    types: tuple[str, ...],
    internal: bool,
) -> None:
    """List all groups, or those that match PATTERN (* and ?). Omits the groups of nodes.

    \b
    mqctl group list
    mqctl group list 'billing-*' --state Stable
    """
    groups = run(settings, lambda client: list_groups(client, settings, states, types))
    rows = [
        {
            "group": each.group_id,
            "state": each.state or None,
            "type": each.type or None,
            "protocol_type": each.protocol_type or None,
            "coordinator": each.node_id,
        }
        for each in groups.rows
        if (pattern is None or fnmatchcase(each.group_id, pattern))
        and (internal or not is_reserved(each.group_id))
    ]
    if not rows and not groups.failed:
        print_message(
            "no groups" if pattern is None and not states and not types else "no group matches"
        )
    settings.show_found(GROUPS, rows)
    finish(groups.results)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP|PATTERN...")
@options
def describe(settings: Settings, names: tuple[str, ...]) -> None:
    """Show the members of groups and their assignments. A PATTERN contains * or ?.

    For a classic group that is rebalancing, mqd also reports when the rebalance began, and for
    which members it waits. For offsets and lag, see `mqctl group lag`.

    \b
    mqctl group describe billing
    """

    async def work(client: ClusterClient) -> tuple[Mapping[str, Any], ListsByBroker[ListedGroup]]:
        chosen, listed = await choose_groups(client, settings, names)
        unmatched = {} if listed.failed else without_match("group", names, chosen)
        return {**await admin_of(client, settings).describe_groups(chosen), **unmatched}, listed

    results, listed = run(settings, work)
    from mqd.client.errors import ClientError
    from mqd.client.group_descriptions import REBALANCING_STATES

    known = [each for each in results.values() if not isinstance(each, ClientError)]
    now_ms = time.time_ns() // 1_000_000
    found = [_described(each, now_ms) for each in known]
    if settings.output == "table":
        for index, each in enumerate(found):
            write("\n" if index else "")
            rebalances = "rebalancing_since" in each
            write(render.fields({name: value for name, value in each.items() if name != "members"}))
            if each["members"]:
                write("\n")
                columns = (*MEMBERS, render.Column("awaited", "AWAITED")) if rebalances else MEMBERS
                settings.show(
                    columns,
                    [
                        {**row, "partitions": format_assignment(row["partitions"])}
                        for row in each["members"]
                    ],
                )
    else:
        settings.show((), found)
    for group in known:
        if group.state in REBALANCING_STATES and group.since_ms < 0:
            print_message(
                f"group {group.group_id!r} is rebalancing; the log of its coordinator, "
                f"{group.coordinator}, may name the members that it waits for"
            )
    finish(listed.with_failures(results))


def _described(each: GroupDescription, now_ms: int) -> dict[str, Any]:
    rebalances = each.since_ms >= 0
    members = []
    for member in each.members:
        row: dict[str, Any] = {
            "member": member.member_id,
            "instance": member.instance_id,
            "client": member.client_id,
            "host": member.host,
            "rack": member.rack,
            "epoch": member.epoch if member.epoch >= 0 else None,
            "topics": list(member.topics),
            "pattern": member.pattern,
            "partitions": by_topic(member.assignment),
        }
        if member.target is not None and member.target != member.assignment:
            row["target"] = by_topic(member.target)
        if rebalances:
            row["awaited"] = member.awaited
        members.append(row)
    return {
        "group": each.group_id,
        "state": each.state,
        **(
            {
                "rebalancing_since": places.format_time(each.since_ms),
                "rebalancing_for": format_duration((now_ms - each.since_ms) / 1000),
            }
            if rebalances
            else {}
        ),
        "type": each.type,
        "protocol_type": each.protocol_type or None,
        "assignor": each.assignor or None,
        "epoch": each.epoch if each.epoch >= 0 else None,
        "coordinator": each.coordinator,
        "members": members,
    }

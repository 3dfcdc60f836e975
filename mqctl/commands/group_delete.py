"""mqctl group remove-member, delete and delete-offsets."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import Failure, Settings, confirm, options, print_message, run
from mqctl.groups import admin_of, by_topic, choose_groups, format_assignment
from mqctl.outcomes import finish, without_match
from mqctl.planning import parse_partition
from mqd.errors import some_of
from mqd.types import TopicPartition

if TYPE_CHECKING:
    from mqd.client.admin import Admin
    from mqd.client.cluster import ClusterClient


_NAMED_MAX = 50
DELETED = (render.Column("group", "GROUP"), render.Column("deleted", "DELETED"))
REMOVED = (render.Column("member", "MEMBER"), render.Column("removed", "REMOVED"))
DELETED_OFFSETS = (
    render.Column("topic", "TOPIC"),
    render.Column("partition", "PARTITION", right=True),
    render.Column("deleted", "DELETED"),
)


@click.command("remove-member")
@click.argument("name", metavar="GROUP")
@click.option(
    "--member",
    "member_ids",
    multiple=True,
    metavar="ID",
    help="Member id, as shown by `mqctl group describe`; repeatable.",
)
@click.option(
    "--instance",
    "instance_ids",
    multiple=True,
    metavar="ID",
    help="group.instance.id of a static member; repeatable.",
)
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def remove_member(
    settings: Settings,
    name: str,
    member_ids: tuple[str, ...],
    instance_ids: tuple[str, ...],
    yes: bool,
) -> None:
    """Remove members from a group. The other members take over their partitions.

    Use it for a dead member with a long session timeout, or for one that delays a rebalance
    (AWAITED in `mqctl group describe`). A running member rejoins after its next heartbeat: stop it
    first.

    \b
    mqctl group remove-member billing --instance billing-3
    mqctl group remove-member billing --member consumer-1-5f0c..
    """
    if not member_ids and not instance_ids:
        raise click.UsageError("specify a member: --member ID or --instance ID")

    async def look(client: ClusterClient) -> dict[str, str]:
        from mqd.client.errors import ClientError

        described = (await admin_of(client, settings).describe_groups([name]))[name]
        if isinstance(described, ClientError):
            raise described
        descriptions: dict[str, str] = {}
        for each in described.members:
            description = (
                f"client {each.client_id!r} at {each.host}, which has "
                f"{format_assignment(by_topic(each.assignment)) or 'no partitions'}"
            )
            descriptions |= {
                each.member_id: description,
                each.instance_id or each.member_id: description,
            }
        return descriptions

    known = run(settings, look)
    lines = [
        f"{each}: {known.get(each, 'not a member of the group')}"
        for each in (*member_ids, *instance_ids)
    ]
    confirm(
        "\n  ".join([f"This removes from group {name!r}, which then rebalances:", *lines]), yes=yes
    )

    async def work(client: ClusterClient) -> dict[str, Any]:
        reason = "removed by an administrator with mqctl"
        return dict(
            await admin_of(client, settings).remove_members(
                name, member_ids=member_ids, instance_ids=instance_ids, reason=reason
            )
        )

    results = run(settings, work)
    settings.show(
        REMOVED, [{"member": each, "removed": error is None} for each, error in results.items()]
    )
    finish(results)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="GROUP|PATTERN...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@click.option(
    "--if-exists",
    is_flag=True,
    help="Ignore groups that do not exist, and patterns without matches.",
)
@options
def delete(settings: Settings, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete groups and their offsets. A PATTERN contains * or ?.

    The groups must have no members. This cannot be undone.

    \b
    mqctl group delete billing
    mqctl group delete 'console-consumer-*'  shows the groups that match, and asks for confirmation
    """
    chosen, listed = run(settings, lambda client: choose_groups(client, settings, names))
    from mqd.client.errors import ClientError
    from mqd.errors import ErrorCode

    empty = [name for name, is_active in chosen.items() if not is_active]
    active = [name for name in chosen if name not in set(empty)]
    if empty:
        staying = (
            f"\nIt keeps {len(active)} group(s) with members: {some_of(active, _NAMED_MAX)}"
            if active
            else ""
        )
        staying += (
            f"\nIt skips the groups of unreachable brokers: {some_of(listed.failed, _NAMED_MAX)}"
            if listed.failed
            else ""
        )
        confirm(
            f"This permanently deletes {len(empty)} group(s) and their offsets: "
            f"{some_of(empty, _NAMED_MAX)}{staying}",
            yes=yes,
        )
    results: dict[str, Any] = dict(
        run(settings, lambda client: admin_of(client, settings).delete_groups(empty))
        if empty
        else {}
    )
    results |= {
        name: ClientError(ErrorCode.NON_EMPTY_GROUP, "the group is not empty") for name in active
    }
    rows = [{"group": name, "deleted": error is None} for name, error in results.items()]
    for name, error in list(results.items()):
        if if_exists and error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            print_message(f"Group {name!r} does not exist.")
            results[name] = None
    unmatched = {} if listed.failed else without_match("group", names, chosen)
    if if_exists:
        for missing in unmatched.values():
            print_message(missing.message)
        unmatched = {}
    settings.show_found(DELETED, rows)
    finish(listed.with_failures({**results, **unmatched}))


async def _delete_share_offsets(
    admin: Admin, name: str, named: list[tuple[str, int | None]]
) -> dict[TopicPartition, Any]:
    """The result for each partition. Raises Failure for a single partition."""
    from mqd.client.errors import ClientError

    for topic, index in named:
        if index is not None:
            raise Failure(
                f"{name!r} is a share group: its offsets of a topic are deleted together",
                remedy=f"name the topic alone: {topic}",
            )
    offsets = (await admin.list_share_group_offsets([name]))[name]
    if isinstance(offsets, ClientError):
        raise offsets
    wanted = [tp for tp in offsets if (tp.topic, None) in named]
    results = await admin.delete_share_group_offsets(name, {tp.topic for tp in wanted})
    return {tp: results[tp.topic] for tp in wanted}


@click.command("delete-offsets")
@click.argument("name", metavar="GROUP")
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC[:PARTITION]...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def delete_offsets(settings: Settings, name: str, partitions: tuple[str, ...], yes: bool) -> None:
    """Delete a group's committed offsets of topics or partitions that no member is subscribed to.

    This cannot be undone. Of a share group, it deletes all offsets of a topic.

    \b
    mqctl group delete-offsets billing orders payments:3
    """
    try:
        named = [parse_partition(text) for text in partitions]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    confirm(
        f"This permanently deletes the offsets that group {name!r} has committed for "
        f"{', '.join(partitions)}.",
        yes=yes,
    )

    async def work(client: ClusterClient) -> dict[TopicPartition, Any]:
        from mqd.client.errors import ClientError

        admin = admin_of(client, settings)
        described = (await admin.describe_groups([name]))[name]
        if not isinstance(described, ClientError) and described.type == "share":
            return await _delete_share_offsets(admin, name, named)
        committed = (await admin.list_group_offsets([name]))[name]
        if isinstance(committed, ClientError):
            raise committed
        wanted = [
            tp
            for tp in committed
            if any(tp.topic == topic and index in (None, tp.partition) for topic, index in named)
        ]
        return dict(await admin.delete_group_offsets(name, wanted)) if wanted else {}

    results = run(settings, work)
    if not results:
        raise Failure(
            f"group {name!r} has no committed offsets for these partitions",
            remedy=f"list its offsets with `mqctl group lag {shlex.quote(name)}`",
        )
    rows = [
        {"topic": tp.topic, "partition": tp.partition, "deleted": error is None}
        for tp, error in results.items()
    ]
    settings.show(DELETED_OFFSETS, rows)
    finish(results)

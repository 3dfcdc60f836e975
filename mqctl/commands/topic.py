"""mqctl topic: create, list, describe, change and delete topics.

`topic trim` is in topic_trim.py.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import (
    Failure,
    LazyGroup,
    Settings,
    confirm,
    options,
    parse_pairs,
    print_message,
    run,
    write,
)
from mqctl.outcomes import finish, is_pattern, without_match
from mqd.errors import some_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import ConfigEntry
    from mqd.client.metadata import TopicInfo

COMMANDS = {
    "create": ("mqctl.commands.topic:create", "Create topics."),
    "list": ("mqctl.commands.topic:list_", "List topics."),
    "describe": (
        "mqctl.commands.topic:describe",
        "Show partitions, leaders, replicas and offsets of topics.",
    ),
    "delete": ("mqctl.commands.topic:delete", "Delete topics and all their records."),
    "trim": ("mqctl.commands.topic_trim:trim", "Delete the oldest records of topics."),
    "add-partitions": ("mqctl.commands.topic:add_partitions", "Add partitions to a topic."),
    "config": (
        "mqctl.commands.topic_config:config",
        "Show and change the configuration of a topic.",
    ),
}

RESULTS = (
    render.Column("topic", "TOPIC"),
    render.Column("partitions", "PARTITIONS", right=True),
    render.Column("replication_factor", "REPLICAS", right=True),
    render.Column("topic_id", "ID"),
)
TOPICS = (*RESULTS, render.Column("internal", "INTERNAL"))
_NAMED_MAX = 50
"""At most this many topics are named before a confirmation."""
PARTITIONS = (
    render.Column("partition", "PARTITION", right=True),
    render.Column("leader", "LEADER", right=True),
    render.Column("leader_epoch", "EPOCH", right=True),
    render.Column("replicas", "REPLICAS"),
    render.Column("isr", "IN-SYNC"),
    render.Column("beginning", "BEGINNING", right=True),
    render.Column("end", "END", right=True),
)


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def topic() -> None:
    """Create, list, describe, change and delete topics."""


def _described(found: TopicInfo) -> dict[str, Any]:
    return {
        "topic": found.name,
        "partitions": len(found.partitions),
        "replication_factor": found.replication_factor,
        "topic_id": str(found.topic_id) if found.topic_id.int else None,
        "internal": found.internal,
    }


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of partitions. [default: num.partitions of the cluster]",
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replicas of each partition. [default: default.replication.factor of the cluster]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A configuration key of the topic; repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Ignore topics that already exist.")
@click.option("--dry-run", is_flag=True, help="Validate the request without creating anything.")
@options
def create(
    settings: Settings,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
) -> None:
    """Create topics.

    \b
    mqctl topic create orders -p 6 -r 3 -c retention.ms=3600000
    """
    pairs = parse_pairs(configs)

    async def work(client: ClusterClient) -> dict[str, Any]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import NewTopic

        wanted = [
            NewTopic(name, partitions or -1, replication_factor or -1, pairs) for name in names
        ]
        return dict(
            await Admin(client, timeout_s=settings.timeout_s).create_topics(
                wanted, validate_only=dry_run
            )
        )

    results = run(settings, work)
    from mqctl.configs import warn_of_ignored
    from mqd.client.descriptions import CreatedTopic
    from mqd.errors import ErrorCode

    rows = []
    for name, made in list(results.items()):
        if isinstance(made, CreatedTopic):
            rows.append(
                {
                    "topic": name,
                    "partitions": made.partitions if made.partitions >= 0 else partitions,
                    "replication_factor": made.replication_factor
                    if made.replication_factor >= 0
                    else replication_factor,
                    "topic_id": str(made.topic_id) if made.topic_id.int else None,
                }
            )
        elif if_not_exists and made.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            print_message(f"Topic {name!r} already exists.")
            results[name] = None
    settings.show_found(RESULTS, rows)
    created = [name for name, made in results.items() if isinstance(made, CreatedTopic)]
    if dry_run:
        print_message("dry run: nothing was created")
    elif pairs and created:
        warn_of_ignored(
            run(
                settings,
                lambda client: _set_entries(client, created[0], tuple(pairs), settings.timeout_s),
            )
        )
    finish(results)


async def _set_entries(
    client: ClusterClient, name: str, keys: tuple[str, ...], timeout_s: float
) -> list[ConfigEntry]:
    """The keys that were set for a new topic, with their documentation; none if the broker does not
    know the topic yet.
    """
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    resource = Resource(ResourceType.TOPIC, name)
    found = (
        await Admin(client, timeout_s=timeout_s).describe_configs(
            [resource], keys, documentation=True
        )
    )[resource]
    return [] if isinstance(found, ClientError) else found


@click.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@options
def list_(settings: Settings, pattern: str | None, internal: bool) -> None:
    """List all topics, or those that match PATTERN (* and ?).

    \b
    mqctl topic list 'orders*'
    """

    async def work(client: ClusterClient) -> list[TopicInfo]:
        from mqd.client.admin import Admin

        return await Admin(client, timeout_s=settings.timeout_s).list_topics(internal=internal)

    rows = [
        _described(each)
        for each in run(settings, work)
        if pattern is None or fnmatchcase(each.name, pattern)
    ]
    if not rows:
        print_message("no topics" if pattern is None else f"no topic matches {pattern!r}")
    settings.show_found(TOPICS if internal else RESULTS, rows)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC...")
@options
def describe(settings: Settings, names: tuple[str, ...]) -> None:
    """Show partitions, leaders, replicas, offsets and configuration of topics.

    \b
    mqctl topic describe orders
    """
    results = run(settings, lambda client: _describe(client, settings, names))
    found = [outcome for outcome in results.values() if isinstance(outcome, dict)]
    if settings.output == "table":
        for index, each in enumerate(found):
            write("\n" if index else "")
            write(
                render.fields({name: value for name, value in each.items() if name != "partitions"})
                + "\n"
            )
            settings.show(PARTITIONS, each["partitions"])
    else:
        settings.show((), found)
    finish(results)


def _storage(entries: Iterable[ConfigEntry]) -> dict[str, str]:
    """Whether the records are in memory. Empty for a topic on disk."""
    if any((entry.name, entry.value) == ("mqd.storage", "memory") for entry in entries):
        return {"storage": "memory: a node that restarts loses its copy"}
    return {}


async def _describe(
    client: ClusterClient, settings: Settings, names: tuple[str, ...]
) -> dict[str, Any]:
    from mqctl.configs import shown_configs
    from mqd.client.admin import Admin
    from mqd.client.descriptions import EARLIEST, LATEST, ConfigSource, Resource, ResourceType
    from mqd.client.errors import ClientError
    from mqd.types import TopicPartition

    admin = Admin(client, timeout_s=settings.timeout_s)
    results: dict[str, Any] = dict(await admin.describe_topics(names))
    topics: list[TopicInfo] = [
        each for each in results.values() if not isinstance(each, ClientError)
    ]
    led = [
        TopicPartition(each.name, one.partition)
        for each in topics
        for one in each.partitions
        if one.leader >= 0
    ]
    beginnings = await admin.list_offsets(dict.fromkeys(led, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(led, LATEST))
    configs = await admin.describe_configs(
        [Resource(ResourceType.TOPIC, each.name) for each in topics], documentation=True
    )
    for each in topics:
        entries = configs[Resource(ResourceType.TOPIC, each.name)]
        changed = [
            entry
            for entry in (() if isinstance(entries, ClientError) else entries)
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        ]
        results[each.name] = {
            "topic": each.name,
            "topic_id": str(each.topic_id) if each.topic_id.int else None,
            "internal": each.internal,
            "replication_factor": each.replication_factor,
            **_storage(() if isinstance(entries, ClientError) else entries),
            **shown_configs(changed, settings),
            "partitions": [
                {
                    "partition": one.partition,
                    "leader": one.leader if one.leader >= 0 else None,
                    "leader_epoch": one.leader_epoch,
                    "replicas": list(one.replicas),
                    "isr": list(one.isr),
                    "beginning": getattr(
                        beginnings.get(TopicPartition(each.name, one.partition)), "offset", None
                    ),
                    "end": getattr(
                        ends.get(TopicPartition(each.name, one.partition)), "offset", None
                    ),
                }
                for one in each.partitions
            ],
        }
    return results


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="TOPIC|PATTERN...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@click.option(
    "--if-exists",
    is_flag=True,
    help="Ignore topics that do not exist, and patterns without matches.",
)
@options
def delete(settings: Settings, names: tuple[str, ...], yes: bool, if_exists: bool) -> None:
    """Delete topics and all their records. A PATTERN contains * or ?.

    This cannot be undone. Patterns do not match internal topics.

    \b
    mqctl topic delete orders
    mqctl topic delete 'test-*'      shows the topics that match, and asks for confirmation
    """
    chosen = run(settings, lambda client: _choose(client, names, settings.timeout_s))
    unmatched = without_match("topic", names, chosen)
    if chosen:
        confirm(
            f"This permanently deletes {len(chosen)} topic(s) and all their records: "
            f"{some_of(chosen, _NAMED_MAX)}",
            yes=yes,
        )

    async def work(client: ClusterClient) -> dict[str, Any]:
        from mqd.client.admin import Admin

        return dict(await Admin(client, timeout_s=settings.timeout_s).delete_topics(chosen))

    results = run(settings, work) if chosen else {}
    from mqd.errors import ErrorCode

    rows = [{"topic": name, "deleted": error is None} for name, error in results.items()]
    for name, error in list(results.items()):
        if if_exists and error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            print_message(f"Topic {name!r} does not exist.")
            results[name] = None
    if if_exists:
        for missing in unmatched.values():
            print_message(missing.message)
        unmatched = {}
    settings.show_found(
        (render.Column("topic", "TOPIC"), render.Column("deleted", "DELETED")), rows
    )
    finish({**results, **unmatched})


async def _choose(client: ClusterClient, names: tuple[str, ...], timeout_s: float) -> list[str]:
    """The named topics, then those that match a pattern, once each."""
    from mqd.client.admin import Admin

    patterns = [name for name in names if is_pattern(name)]
    chosen = dict.fromkeys(name for name in names if name not in patterns)
    if patterns:
        for each in await Admin(client, timeout_s=timeout_s).list_topics():
            if any(fnmatchcase(each.name, pattern) for pattern in patterns):
                chosen[each.name] = None
    return list(chosen)


@click.command("add-partitions")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--to", "total", type=click.IntRange(min=1), metavar="N", help="New number of partitions."
)
@click.option(
    "--by", "more", type=click.IntRange(min=1), metavar="N", help="Number of partitions to add."
)
@click.option("--dry-run", is_flag=True, help="Validate the request without adding anything.")
@options
def add_partitions(
    settings: Settings, name: str, total: int | None, more: int | None, dry_run: bool
) -> None:
    """Add partitions to a topic. This cannot be undone, and keys then map to other partitions.

    \b
    mqctl topic add-partitions orders --to 12
    """
    if (total is None) == (more is None):
        raise click.UsageError("specify one of --to TOTAL and --by MORE")

    async def work(client: ClusterClient) -> tuple[int, int]:
        from mqd.client.admin import Admin
        from mqd.client.errors import ClientError

        admin = Admin(client, timeout_s=settings.timeout_s)
        described = (await admin.describe_topics([name]))[name]
        if isinstance(described, ClientError):
            raise described
        before = len(described.partitions)
        after = total if total is not None else before + (more or 0)
        if after <= before:
            raise Failure(
                f"topic {name!r} already has {before} partitions",
                remedy="specify a larger number: partitions can be added, but not removed",
            )
        error = (await admin.add_partitions({name: after}, validate_only=dry_run))[name]
        if error is not None:
            raise error
        return before, after

    before, after = run(settings, work)
    columns = (
        render.Column("topic", "TOPIC"),
        render.Column("before", "BEFORE", right=True),
        render.Column("after", "AFTER", right=True),
    )
    settings.show(columns, [{"topic": name, "before": before, "after": after}])
    print_message(
        "dry run: nothing was changed"
        if dry_run
        else "records with a key now map to other partitions"
    )

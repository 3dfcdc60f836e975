"""mqctl topic config: see and change the configuration of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mqctl import render
from mqctl.app import LazyGroup, Settings, options, parse_pairs, run, say

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import ConfigEntry

COMMANDS = {
    "get": ("mqctl.commands.topic_config:get", "Show options with their values and where these come from."),
    "set": ("mqctl.commands.topic_config:set_", "Set options."),
    "unset": ("mqctl.commands.topic_config:unset", "Go back to the cluster's defaults."),
    "append": ("mqctl.commands.topic_config:append", "Add to options that are lists."),
    "subtract": ("mqctl.commands.topic_config:subtract", "Take away from options that are lists."),
}

ENTRIES = (render.Column("name", "NAME"), render.Column("value", "VALUE"), render.Column("source", "SOURCE"))


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def config() -> None:
    """See and change the configuration of a topic."""


@click.command()
@click.argument("topic")
@click.argument("names", nargs=-1, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only what was set for this topic.")
@click.option("--explain", is_flag=True, help="With the meaning of each option.")
@options
def get(settings: Settings, topic: str, names: tuple[str, ...], changed: bool, explain: bool) -> None:
    """Show options of TOPIC with their values and where these come from; all, or the named ones."""
    entries = run(settings, lambda client: _entries(client, settings, topic, names, explain))
    from mqd.client.descriptions import ConfigSource

    rows: list[dict[str, Any]] = []
    for entry in entries:
        if not changed or entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG:
            row = {
                "name": entry.name,
                "value": None if entry.sensitive else entry.value,
                "source": entry.source.name.lower().removesuffix("_config"),
            }
            rows.append({**row, "meaning": entry.documentation} if explain else row)
    for name in set(names) - {entry.name for entry in entries}:
        say(f"topic {topic!r} has no option {name!r}")
    settings.show((*ENTRIES, render.Column("meaning", "MEANING")) if explain else ENTRIES, rows)


async def _entries(client: ClusterClient, settings: Settings, topic: str, names: tuple[str, ...], explain: bool) -> list[ConfigEntry]:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    resource = Resource(ResourceType.TOPIC, topic)
    admin = Admin(client, timeout_s=settings.timeout_s)
    outcome = (await admin.describe_configs([resource], names or None, documentation=explain))[resource]
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


@click.command("set")
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def set_(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Set options of TOPIC; all others stay as they are."""
    _alter(settings, topic, "SET", parse_pairs(pairs), dry_run)


@click.command()
@click.argument("topic")
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def unset(settings: Settings, topic: str, names: tuple[str, ...], dry_run: bool) -> None:
    """Go back to the cluster's defaults for options of TOPIC."""
    _alter(settings, topic, "DELETE", dict.fromkeys(names), dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def append(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Add to options of TOPIC that are lists, like cleanup.policy."""
    _alter(settings, topic, "APPEND", parse_pairs(pairs), dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def subtract(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Take away from options of TOPIC that are lists, like cleanup.policy."""
    _alter(settings, topic, "SUBTRACT", parse_pairs(pairs), dry_run)


def _alter(settings: Settings, topic: str, operation: str, changes: dict[str, Any], dry_run: bool) -> None:
    async def work(client: ClusterClient) -> list[ConfigEntry]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType

        resource = Resource(ResourceType.TOPIC, topic)
        wanted = [ConfigChange(name, ConfigOperation[operation], value) for name, value in changes.items()]
        admin = Admin(client, timeout_s=settings.timeout_s)
        error = (await admin.alter_configs({resource: wanted}, validate_only=dry_run))[resource]
        if error is not None:
            raise error
        return await _entries(client, settings, topic, tuple(changes), False)

    entries = run(settings, work)
    rows = [{"name": entry.name, "value": entry.value, "source": entry.source.name.lower().removesuffix("_config")} for entry in entries]
    settings.show(ENTRIES, rows)
    if dry_run:
        say("dry run: nothing was changed; above is what holds now")

"""mqctl topic config: see and change the configuration of a topic."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, Settings, options, parse_pairs
from mqctl.configs import alter, show

COMMANDS = {
    "get": ("mqctl.commands.topic_config:get", "Show options with their values and where these come from."),
    "set": ("mqctl.commands.topic_config:set_", "Set options."),
    "unset": ("mqctl.commands.topic_config:unset", "Go back to the cluster's defaults."),
    "append": ("mqctl.commands.topic_config:append", "Add to options that are lists."),
    "subtract": ("mqctl.commands.topic_config:subtract", "Take away from options that are lists."),
}


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
    show(settings, "topic", topic, names, changed=changed, explain=explain)


@click.command("set")
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def set_(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Set options of TOPIC; all others stay as they are."""
    alter(settings, "topic", topic, "SET", parse_pairs(pairs), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def unset(settings: Settings, topic: str, names: tuple[str, ...], dry_run: bool) -> None:
    """Go back to the cluster's defaults for options of TOPIC."""
    alter(settings, "topic", topic, "DELETE", dict.fromkeys(names), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def append(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Add to options of TOPIC that are lists, like cleanup.policy."""
    alter(settings, "topic", topic, "APPEND", parse_pairs(pairs), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def subtract(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Take away from options of TOPIC that are lists, like cleanup.policy."""
    alter(settings, "topic", topic, "SUBTRACT", parse_pairs(pairs), dry_run=dry_run)

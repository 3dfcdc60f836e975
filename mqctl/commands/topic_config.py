"""mqctl topic config: show and change the configuration of a topic."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, Settings, options, parse_pairs
from mqctl.configs import alter, show
from mqd.delay_names import TARGET_CONFIG

COMMANDS = {
    "get": (
        "mqctl.commands.topic_config:get",
        "Show configuration keys with their values and sources.",
    ),
    "set": ("mqctl.commands.topic_config:set_", "Set configuration keys."),
    "unset": ("mqctl.commands.topic_config:unset", "Reset configuration keys to their defaults."),
    "append": ("mqctl.commands.topic_config:append", "Append values to keys of type list."),
    "subtract": ("mqctl.commands.topic_config:subtract", "Remove values from keys of type list."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def config() -> None:
    """Show and change the configuration of a topic."""


@click.command()
@click.argument("topic")
@click.argument("names", nargs=-1, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only keys that are set for this topic.")
@click.option("--explain", is_flag=True, help="Also show the meaning of each key.")
@options
def get(
    settings: Settings, topic: str, names: tuple[str, ...], changed: bool, explain: bool
) -> None:
    """Show all or the named configuration keys of TOPIC, with their values and sources.

    \b
    mqctl topic config get orders retention.ms
    """
    show(settings, "topic", topic, names, changed=changed, explain=explain)


@click.command("set")
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def set_(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Set configuration keys of TOPIC; other keys do not change.

    \b
    mqctl topic config set orders retention.ms=3600000
    """
    alter(settings, "topic", topic, "SET", parse_pairs(pairs), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def unset(settings: Settings, topic: str, names: tuple[str, ...], dry_run: bool) -> None:
    """Reset configuration keys of TOPIC to the defaults of the cluster.

    Without mqd.delay.target, a topic is no delay topic any more. A warning has the number of its
    pending records; the command reads at most 100,000 records to count them.

    \b
    mqctl topic config unset orders retention.ms
    """
    if TARGET_CONFIG in names:
        from mqctl.commands.delay import warn_of_pending

        warn_of_pending(settings, topic)
    alter(settings, "topic", topic, "DELETE", dict.fromkeys(names), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def append(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Append values to keys of TOPIC of type list.

    \b
    mqctl topic config append orders cleanup.policy=compact
    """
    alter(settings, "topic", topic, "APPEND", parse_pairs(pairs), dry_run=dry_run)


@click.command()
@click.argument("topic")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def subtract(settings: Settings, topic: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Remove values from keys of TOPIC of type list.

    \b
    mqctl topic config subtract orders cleanup.policy=compact
    """
    alter(settings, "topic", topic, "SUBTRACT", parse_pairs(pairs), dry_run=dry_run)

"""mqctl group config: show and change the configuration of a group."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, Settings, options, parse_pairs
from mqctl.configs import alter, show

COMMANDS = {
    "get": (
        "mqctl.commands.group_config:get",
        "Show configuration keys with their values and sources.",
    ),
    "set": ("mqctl.commands.group_config:set_", "Set configuration keys."),
    "unset": ("mqctl.commands.group_config:unset", "Reset configuration keys to their defaults."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def config() -> None:
    """Show and change the configuration of share groups, and of consumer groups (KIP-848)."""


@click.command()
@click.argument("group")
@click.argument("names", nargs=-1, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only keys that are set for this group.")
@click.option("--explain", is_flag=True, help="Also show the meaning of each key.")
@options
def get(
    settings: Settings, group: str, names: tuple[str, ...], changed: bool, explain: bool
) -> None:
    """Show all or the named configuration keys of GROUP, with their values and sources.

    \b
    mqctl group config get billing --explain
    """
    show(settings, "group", group, names, changed=changed, explain=explain)


@click.command("set")
@click.argument("group")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def set_(settings: Settings, group: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Set configuration keys of GROUP; other keys do not change. The group need not exist yet.

    \b
    mqctl group config set billing consumer.session.timeout.ms=60000
    mqctl group config set billing share.auto.offset.reset=earliest
    """
    alter(settings, "group", group, "SET", dict(parse_pairs(pairs)), dry_run=dry_run)


@click.command()
@click.argument("group")
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def unset(settings: Settings, group: str, names: tuple[str, ...], dry_run: bool) -> None:
    """Reset configuration keys of GROUP to the defaults of the cluster.

    \b
    mqctl group config unset billing consumer.session.timeout.ms
    """
    alter(settings, "group", group, "DELETE", dict.fromkeys(names), dry_run=dry_run)

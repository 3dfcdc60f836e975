"""mqctl group config: see and change the configuration of a group."""

from __future__ import annotations

import click

from mqctl.app import LazyGroup, Settings, options, parse_pairs
from mqctl.configs import alter, show

COMMANDS = {
    "get": ("mqctl.commands.group_config:get", "Show options with their values and where these come from."),
    "set": ("mqctl.commands.group_config:set_", "Set options."),
    "unset": ("mqctl.commands.group_config:unset", "Go back to the cluster's defaults."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def config() -> None:
    """See and change the configuration of a group that speaks the consumer protocol (KIP-848): sessions, heartbeats, assignments."""


@click.command()
@click.argument("group")
@click.argument("names", nargs=-1, metavar="[KEY]...")
@click.option("--changed", is_flag=True, help="Only what was set for this group.")
@click.option("--explain", is_flag=True, help="With the meaning of each option.")
@options
def get(settings: Settings, group: str, names: tuple[str, ...], changed: bool, explain: bool) -> None:
    """Show options of GROUP with their values and where these come from; all, or the named ones."""
    show(settings, "group", group, names, changed=changed, explain=explain)


@click.command("set")
@click.argument("group")
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def set_(settings: Settings, group: str, pairs: tuple[str, ...], dry_run: bool) -> None:
    """Set options of GROUP, which need not exist yet; all others stay as they are.

    \b
    mqctl group config set billing consumer.session.timeout.ms=60000
    """
    alter(settings, "group", group, "SET", dict(parse_pairs(pairs)), dry_run=dry_run)


@click.command()
@click.argument("group")
@click.argument("names", nargs=-1, required=True, metavar="KEY...")
@click.option("--dry-run", is_flag=True, help="Let the cluster check it and change nothing.")
@options
def unset(settings: Settings, group: str, names: tuple[str, ...], dry_run: bool) -> None:
    """Go back to the cluster's defaults for options of GROUP."""
    alter(settings, "group", group, "DELETE", dict.fromkeys(names), dry_run=dry_run)

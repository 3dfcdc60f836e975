"""mqctl feature: the versions of cluster-wide features (KIP-584)."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
)

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import Feature

COMMANDS = {
    "list": ("mqctl.commands.feature:list_", "List finalized and supported feature levels."),
    "upgrade": (
        "mqctl.commands.feature:upgrade",
        "Finalize new levels after every node runs the new release.",
    ),
}
FEATURES = (
    render.Column("name", "FEATURE"),
    render.Column("finalized", "FINALIZED", right=True),
    render.Column("lowest", "LOWEST", right=True),
    render.Column("newest", "NEWEST", right=True),
)
METADATA_VERSION = "mqd.metadata.version"


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def feature() -> None:
    """List features and finalize their levels."""


async def _features(client: ClusterClient, settings: Settings) -> list[Feature]:
    from mqd.client.admin import Admin

    return await Admin(client, timeout_s=settings.timeout_s).describe_features()


@click.command("list")
@options
def list_(settings: Settings) -> None:
    """List finalized and supported feature levels.

    FINALIZED is the level in use. LOWEST and NEWEST are the levels that the controller supports.

    \b
    mqctl feature list
    """
    found = run(settings, lambda client: _features(client, settings))
    settings.show(FEATURES, [each._asdict() for each in found])


@click.command()
@click.argument("wanted", nargs=-1, metavar="[NAME=LEVEL]...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def upgrade(settings: Settings, wanted: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Finalize feature levels, after every node runs the new release.

    Without NAME=LEVEL: the newest mqd.metadata.version that the controller supports. After that,
    no node can return to an earlier release.

    \b
    mqctl feature upgrade --yes
    mqctl feature upgrade transaction.version=2
    """
    pairs = parse_pairs(wanted)
    levels = {name: int(level) for name, level in pairs.items() if level.isdigit()}
    if levels.keys() != pairs.keys():
        raise click.BadParameter("invalid level: expected a number, as in NAME=LEVEL")
    found = {each.name: each for each in run(settings, lambda client: _features(client, settings))}
    if not levels:
        if METADATA_VERSION not in found:
            raise Failure(
                "this cluster has no mqd.metadata.version",
                remedy="specify a feature and its level: NAME=LEVEL",
            )
        levels = {METADATA_VERSION: found[METADATA_VERSION].newest}
    changes = {
        name: level
        for name, level in levels.items()
        if name not in found or found[name].finalized != level
    }
    if not changes:
        print_message(
            "nothing to change: "
            + ", ".join(f"{name} is {level}" for name, level in levels.items())
        )
        settings.show_found((), [])
        return
    if not dry_run:
        lines = [
            f"{name}: {found[name].finalized if name in found else 0} -> {level}"
            for name, level in changes.items()
        ]
        if METADATA_VERSION in changes:
            lines.append("After this no node can be downgraded to an earlier release.")
        confirm("\n".join(lines), yes=yes)

    async def work(client: ClusterClient) -> None:
        from mqd.client.admin import Admin

        await Admin(client, timeout_s=settings.timeout_s).update_features(
            changes, validate_only=dry_run
        )

    run(settings, work)
    if settings.output != "table":
        settings.show(
            (),
            [
                {"name": name, "level": level, "finalized": not dry_run}
                for name, level in changes.items()
            ],
        )
    print_message(
        ("dry run, the cluster would finalize: " if dry_run else "finalized: ")
        + ", ".join(f"{name}={level}" for name, level in changes.items())
    )

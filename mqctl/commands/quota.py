"""mqctl quota: how much of the cluster clients may use (Kafka's client quotas)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqctl import render
from mqctl.app import (
    USAGE,
    Failure,
    LazyGroup,
    Settings,
    confirm,
    options,
    parse_pairs,
    print_message as note,
    run_admin,
)
from mqctl.outcomes import finish

if TYPE_CHECKING:
    from mqd.client.access import QuotaEntity
    from mqd.client.admin import Admin

COMMANDS = {
    "set": ("mqctl.commands.quota:set_", "Set quotas of a user, client id or address."),
    "list": ("mqctl.commands.quota:list_", "List quotas."),
    "delete": ("mqctl.commands.quota:delete", "Delete quotas."),
}
QUOTAS = (
    render.Column("user", "USER"),
    render.Column("client_id", "CLIENT-ID"),
    render.Column("ip", "ADDRESS"),
    render.Column("key", "KEY"),
    render.Column("value", "VALUE", right=True),
)
_TYPES = {"user": "user", "client_id": "client-id", "ip": "ip"}
"""Option -> entity type."""
_DEFAULT = "<default>"

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


@click.group(cls=LazyGroup, lazy=COMMANDS, no_args_is_help=True)
def quota() -> None:
    """Set, list and delete quotas of users, client ids and addresses.

    Keys of users and client ids: producer_byte_rate and consumer_byte_rate (bytes per second of
    each broker), request_percentage (of one core), controller_mutation_rate (partitions per
    second). Key of addresses: connection_creation_rate.
    """


def _entity_options(function: FunctionT) -> FunctionT:
    for option, metavar, text in (
        ("--ip", "ADDRESS", "An address of clients"),
        ("--client-id", "ID", "A client id"),
        ("--user", "USER", "A user"),
    ):
        function = click.option(
            option, metavar=metavar, help=f"{text}; {_DEFAULT} for those without a quota."
        )(function)
    return function


def _names(given: dict[str, Any]) -> dict[str, str | None]:
    """Names by entity type; None is the default."""
    return {
        kind: None if given[option] == _DEFAULT else given[option]
        for option, kind in _TYPES.items()
        if given[option] is not None
    }


def _entity(given: dict[str, Any]) -> QuotaEntity:
    names = _names(given)
    if not names:
        raise Failure("specify whom the quota limits: --user, --client-id or --ip", exit_code=USAGE)
    return tuple(sorted(names.items()))


@click.command("set")
@_entity_options
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
@click.option("--dry-run", is_flag=True, help="Validate the request without changing anything.")
@options
def set_(settings: Settings, pairs: tuple[str, ...], dry_run: bool, **given: Any) -> None:
    """Set quotas of a user, a client id, both, or an address; other keys do not change.

    \b
    mqctl quota set --user alice producer_byte_rate=1048576
    mqctl quota set --user '<default>' --client-id etl request_percentage=50
    """
    limits: dict[str, float | None] = {}
    for key, text in parse_pairs(pairs).items():
        try:
            limits[key] = float(text)
        except ValueError:
            message = f"invalid value {text!r} of {key}: expected a number"
            raise click.BadParameter(message) from None
    _alter(settings, _entity(given), limits, dry_run=dry_run)
    if dry_run:
        note("dry run: nothing was changed; these are the current values")


@click.command("list")
@_entity_options
@options
def list_(settings: Settings, **given: Any) -> None:
    """List all quotas, or those of a user, client id or address.

    \b
    mqctl quota list --user alice
    """
    names = _names(given)
    rows = run_admin(settings, lambda admin: _rows(admin, names, strict=False))
    if not rows:
        note("no quotas")
    settings.show_found(QUOTAS, rows)


@click.command()
@_entity_options
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--yes", "-y", is_flag=True, help="Skip the confirmation prompt.")
@options
def delete(settings: Settings, keys: tuple[str, ...], yes: bool, **given: Any) -> None:
    """Delete all quotas of a user, client id or address, or the named keys.

    \b
    mqctl quota delete --user alice producer_byte_rate
    """
    entity = _entity(given)
    present = [
        row["key"]
        for row in run_admin(settings, lambda admin: _rows(admin, dict(entity), strict=True))
    ]
    doomed = [key for key in present if not keys or key in keys]
    for key in keys:
        if key not in present:
            note(f"There is no quota {key!r} to delete.")
    if not doomed:
        if not keys:
            note("There is no quota to delete.")
        settings.show_found(QUOTAS, [])
        return
    confirm(f"Delete quotas: {', '.join(doomed)}", yes=yes)
    _alter(settings, entity, dict.fromkeys(doomed), dry_run=False)


def _alter(
    settings: Settings, entity: QuotaEntity, limits: dict[str, float | None], *, dry_run: bool
) -> None:
    """Alter, then write the quotas of the entity."""

    async def work(admin: Admin) -> tuple[Any, list[dict[str, Any]]]:
        results = await admin.alter_client_quotas({entity: limits}, validate_only=dry_run)
        return results, await _rows(admin, dict(entity), strict=True)

    results, rows = run_admin(settings, work)
    settings.show_found(QUOTAS, rows)
    finish({_shown(entity): outcome for entity, outcome in results.items()})


async def _rows(
    admin: Admin, names: dict[str, str | None], *, strict: bool
) -> list[dict[str, Any]]:
    found = await admin.describe_client_quotas(names, strict=strict)
    rows = []
    for entity, limits in found.items():
        of_types = {kind: _DEFAULT if name is None else name for kind, name in entity}
        columns = {option: of_types.get(kind) for option, kind in _TYPES.items()}
        rows += [
            {**columns, "key": key, "value": int(value) if value == int(value) else value}
            for key, value in sorted(limits.items())
        ]
    return rows


def _shown(entity: QuotaEntity) -> str:
    return ", ".join(f"{kind} {_DEFAULT if name is None else name}" for kind, name in entity)

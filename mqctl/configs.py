"""Shows and changes configurations, for `mqctl topic config` and `mqctl group config`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mqctl import render
from mqctl.app import Settings, print_message, run
from mqd.options import IGNORED_BY_MQD

if TYPE_CHECKING:
    from mqd.client.cluster import ClusterClient
    from mqd.client.descriptions import ConfigEntry

ENTRIES = (
    render.Column("name", "NAME"),
    render.Column("value", "VALUE"),
    render.Column("source", "SOURCE"),
)


def show(
    settings: Settings, kind: str, name: str, keys: tuple[str, ...], *, changed: bool, explain: bool
) -> None:
    """Write the configuration of a topic or group (`kind`): all keys or `keys`; with `changed`,
    only those that are set for it.
    """
    entries = run(settings, lambda client: _entries(client, settings, kind, name, keys, explain))
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if not changed or entry.source.name == f"DYNAMIC_{kind.upper()}_CONFIG":
            row = _row(entry)
            rows.append({**row, "meaning": entry.documentation} if explain else row)
    for key in sorted(set(keys) - {entry.name for entry in entries}):
        print_message(f"{kind} {name!r} has no configuration key {key!r}")
    settings.show((*ENTRIES, render.Column("meaning", "MEANING")) if explain else ENTRIES, rows)


def alter(
    settings: Settings,
    kind: str,
    name: str,
    operation: str,
    changes: dict[str, Any],
    *,
    dry_run: bool,
) -> None:
    """SET, DELETE, APPEND to or SUBTRACT from keys, then write their new values."""

    async def work(client: ClusterClient) -> list[ConfigEntry]:
        from mqd.client.admin import Admin
        from mqd.client.descriptions import ConfigChange, ConfigOperation, Resource, ResourceType

        resource = Resource(ResourceType[kind.upper()], name)
        wanted = [
            ConfigChange(key, ConfigOperation[operation], value) for key, value in changes.items()
        ]
        admin = Admin(client, timeout_s=settings.timeout_s)
        error = (await admin.alter_configs({resource: wanted}, validate_only=dry_run))[resource]
        if error is not None:
            raise error
        return await _entries(client, settings, kind, name, tuple(changes), True)

    entries = run(settings, work)
    settings.show(ENTRIES, [_row(entry) for entry in entries])
    if operation != "DELETE":
        warn_of_ignored(entries)
    if dry_run:
        print_message("dry run: nothing was changed; these are the current values")


def warn_of_ignored(entries: Iterable[ConfigEntry]) -> None:
    """Print a warning for each key that has no effect in this cluster, by its documentation."""
    for entry in entries:
        if (entry.documentation or "").startswith(IGNORED_BY_MQD):
            reason = (entry.documentation or "").removeprefix(f"{IGNORED_BY_MQD}: ").split(". ")[0]
            print_message(f"warning: {entry.name} has no effect: {reason}")


async def _entries(
    client: ClusterClient,
    settings: Settings,
    kind: str,
    name: str,
    keys: tuple[str, ...],
    explain: bool,
) -> list[ConfigEntry]:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    resource = Resource(ResourceType[kind.upper()], name)
    admin = Admin(client, timeout_s=settings.timeout_s)
    outcome = (await admin.describe_configs([resource], keys or None, documentation=explain))[
        resource
    ]
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def _row(entry: ConfigEntry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "source": entry.source.name.lower().removesuffix("_config"),
    }

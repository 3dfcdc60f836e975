"""Shows and changes configurations, for `mqctl topic config` and `mqctl group config`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mqctl import render
from mqctl.app import Settings, print_message, run
from mqctl.outcomes import finish
from mqd.errors import ErrorCode
from mqd.options import IGNORED_BY_MQD, LIMITED_BY_MQD

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
    entries = run(settings, lambda client: _entries(client, settings, kind, name, keys))
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if not changed or entry.source.name == f"DYNAMIC_{kind.upper()}_CONFIG":
            row = _row(settings, entry)
            rows.append({**row, "meaning": entry.documentation} if explain else row)
    from mqd.client.errors import ClientError

    columns = (*ENTRIES, render.Column("meaning", "MEANING")) if explain else ENTRIES
    unknown = sorted(set(keys) - {entry.name for entry in entries})
    if not unknown:
        settings.show(columns, rows)
        return
    settings.show_found(columns, rows)
    remedy = f"list the keys with `mqctl {kind} config get {name}`"
    finish(
        {
            **dict.fromkeys(entry.name for entry in entries),
            **{
                key: ClientError(
                    ErrorCode.INVALID_CONFIG,
                    f"{kind.capitalize()} config {key!r} does not exist.",
                    remedy=remedy,
                )
                for key in unknown
            },
        }
    )


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
        return await _entries(client, settings, kind, name, tuple(changes))

    entries = run(settings, work)
    settings.show(ENTRIES, [_row(settings, entry) for entry in entries])
    if operation != "DELETE":
        warn_of_ignored(entries)
    if dry_run:
        print_message("dry run: nothing was changed; these are the current values")


def warn_of_ignored(entries: Iterable[ConfigEntry]) -> None:
    """Print a warning for each key that has no effect in this cluster, by its documentation."""
    for entry in entries:
        documentation = entry.documentation or ""
        if not has_effect(entry):
            reason = documentation.removeprefix(f"{IGNORED_BY_MQD}: ").split(". ")[0]
            print_message(f"warning: {entry.name} has no effect: {reason}")
        elif (limit := _exceeded(entry)) is not None:
            print_message(f"warning: {entry.name}={entry.value} acts as {limit}")


def has_effect(entry: ConfigEntry) -> bool:
    """Whether the cluster uses the key. The entry must have its documentation."""
    return not (entry.documentation or "").startswith(IGNORED_BY_MQD)


def effective(entry: ConfigEntry) -> str | None:
    """The value for a table, with a mark if it has no effect or acts as another one."""
    if entry.value is None or entry.sensitive:
        return None
    if not has_effect(entry):
        return f"{entry.value} (no effect)"
    limit = _exceeded(entry)
    return entry.value if limit is None else f"{entry.value} (acts as {limit})"


def shown_configs(entries: Iterable[ConfigEntry], settings: Settings) -> dict[str, Any]:
    """The keys that are set for a topic or broker, as `config`. A table marks values without
    effect; for other formats, `without_effect` names their keys.
    """
    if settings.output == "table":
        return {"config": {entry.name: effective(entry) for entry in entries}}
    return {
        "config": {entry.name: entry.value for entry in entries},
        "without_effect": [entry.name for entry in entries if not has_effect(entry)],
    }


def _exceeded(entry: ConfigEntry) -> str | None:
    """The largest effective value, if that of the entry is larger."""
    documentation = entry.documentation or ""
    if entry.value is None or not documentation.startswith(LIMITED_BY_MQD):
        return None
    limit = documentation.removeprefix(LIMITED_BY_MQD).split(". ")[0]
    return limit if int(entry.value) > int(limit) else None


async def _entries(
    client: ClusterClient,
    settings: Settings,
    kind: str,
    name: str,
    keys: tuple[str, ...],
) -> list[ConfigEntry]:
    from mqd.client.admin import Admin
    from mqd.client.descriptions import Resource, ResourceType
    from mqd.client.errors import ClientError

    resource = Resource(ResourceType[kind.upper()], name)
    admin = Admin(client, timeout_s=settings.timeout_s)
    outcome = (await admin.describe_configs([resource], keys or None, documentation=True))[resource]
    if isinstance(outcome, ClientError):
        raise outcome
    return outcome


def _row(settings: Settings, entry: ConfigEntry) -> dict[str, Any]:
    source = entry.source.name.lower().removesuffix("_config")
    if settings.output == "table":
        return {"name": entry.name, "value": effective(entry), "source": source}
    return {
        "name": entry.name,
        "value": None if entry.sensitive else entry.value,
        "source": source,
        "has_effect": has_effect(entry),
    }

"""Requests that name several groups: each shard returns its own groups; a group whose shard is on
another node gets an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from mqd.errors import MqError
from mqd.limits import COORDINATED_GROUPS_AT_ONCE
from mqd.server.context import Context
from mqd.server.coordinators import call_of
from mqd.server.slices import KEY_CHARS_A_ROW, Pace, listed_in_slices


async def rows_of_groups(
    context: Context, field: str, group_ids: Iterable[str], response_field: str
) -> list[dict[str, Any]]:
    """A row for each group in the request's field `field`, in its order, from `response_field` of
    the shards' responses. Each call of a shard has so few groups that other connections do not
    wait.
    """
    groups = context.node.groups
    rows: dict[str, dict[str, Any]] = {}
    by_shard: dict[int, list[str]] = {}
    wanted = ((group_id, groups.partition_of(group_id)) for group_id in dict.fromkeys(group_ids))
    for group_id, index in await listed_in_slices(
        wanted, lambda pair: 1 + len(pair[0]) // KEY_CHARS_A_ROW
    ):
        rows[group_id] = {}
        by_shard.setdefault(index, []).append(group_id)
    call = call_of(context, None)
    pace = Pace()
    for index, names in by_shard.items():
        for start in range(0, len(names), COORDINATED_GROUPS_AT_ONCE):
            some = names[start : start + COORDINATED_GROUPS_AT_ONCE]
            try:
                response = await groups.call_shard(
                    index, call._replace(request=SimpleNamespace(**{field: some}))
                )
                rows.update((row["group_id"], row) for row in response[response_field])
            except MqError as error:
                rows.update((name, {"group_id": name, "error_code": error.code}) for name in some)
            await pace.row(len(some))
    return list(rows.values())

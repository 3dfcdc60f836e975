"""DeleteGroups (key 42), versions 0 to 2: empty groups of any type, with their offsets (KIP-229).
Served by the coordinator of each group.

Many offsets are deleted in several steps: if a member joins between two of them, the group and its
remaining offsets stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.several_groups import rows_of_groups


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    rows: dict[str, Mapping[str, Any]] = {}
    names = request.groups_names
    while names:
        found = await rows_of_groups(context, "groups_names", names, "results")
        rows.update((row["group_id"], row) for row in found)
        names = [row["group_id"] for row in found if row.get("unfinished")]
    return {"results": list(rows.values())}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {
        "results": [
            {"group_id": group_id, "error_code": error.code}
            for group_id in dict.fromkeys(request.groups_names)
        ]
    }

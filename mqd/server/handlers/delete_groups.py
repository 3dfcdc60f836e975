"""DeleteGroups (key 42), versions 0 to 2: empty groups of any type, with their offsets (KIP-229).
Served by the coordinator of each group.

The states of a share group are deleted at its share coordinators first (KIP-932).

Many offsets are deleted in several steps: if a member joins between two of them, the group and its
remaining offsets stay.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from mqd.errors import ErrorCode, MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import split
from mqd.server.context import Context
from mqd.server.several_groups import rows_of_groups
from mqd.server.share_offsets import delete_offsets
from mqd.server.slices import Pace, finished_in_slices


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    names, denied = await finished_in_slices(
        split(context, Operation.DELETE, ResourceType.GROUP, request.groups_names, str)
    )
    rows: dict[str, Mapping[str, Any]] = {
        group_id: {"group_id": group_id, "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED}
        for group_id in denied
    }
    pace = Pace()
    while names:
        found = await rows_of_groups(context, "groups_names", names, "results")
        names = []
        for row in found:
            rows[row["group_id"]] = row
            if row.get("has_states"):
                try:
                    await delete_offsets(context, row["group_id"], None)
                except MqError as error:
                    row["error_code"] = error.code
                    continue
            if row.get("unfinished") or row.get("has_states"):
                names.append(row["group_id"])
            await pace.row()
    return {"results": list(rows.values())}


def failed(request: Any, error: MqError) -> Generator[int, None, dict[str, Any]]:
    rows = {}
    for group_id in request.groups_names:
        rows[group_id] = {"group_id": group_id, "error_code": error.code}
        yield 1
    return {"results": list(rows.values())}

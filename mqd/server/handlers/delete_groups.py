"""DeleteGroups (key 42), versions 0 to 2: empty groups of any type, with their offsets (KIP-229). Answered by the coordinator of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.errors import MqError
from mqd.server.context import Context
from mqd.server.several_groups import ask_each


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    return {"results": await ask_each(context, "groups_names", request.groups_names, "results")}


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"results": [{"group_id": group_id, "error_code": error.code} for group_id in dict.fromkeys(request.groups_names)]}

"""ShareGroupDescribe (key 77), version 1: share groups, member by member (KIP-932). Served by each
group's coordinator; the row of a group with another coordinator has an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.server.context import Context
from mqd.server.handlers.consumer_group_describe import described_groups, failed
from mqd.server.share_requests import require_share_groups

__all__ = ["failed", "handle"]


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_share_groups(context.node)
    return await described_groups(context, request)

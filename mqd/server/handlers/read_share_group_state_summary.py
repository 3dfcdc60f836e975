"""ReadShareGroupStateSummary (key 87), versions 0 to 1: start offsets of share partitions
(KIP-932). Served by the share coordinator of each share partition, to other nodes and to clients
with CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.share.operations import ReadSummary
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.share_state_requests import failed_results, results_of

failed = failed_results


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.CLUSTER_ACTION)
    return await results_of(
        context,
        request,
        lambda key, row: ReadSummary(key),
    )

"""WriteShareGroupState (key 85), versions 0 to 1: changes of share partitions (KIP-932). Served by
the share coordinator of each share partition, to other nodes and to clients with CLUSTER_ACTION.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.coordinator.share.operations import WriteState
from mqd.coordinator.share.records import batches_of
from mqd.errors import ErrorCode, MqError
from mqd.limits import SHARE_CHANGE_BATCHES_MAX
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context
from mqd.server.share_state_requests import failed_results, results_of
from mqd.share.ports import ShareKey

failed = failed_results


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.CLUSTER_ACTION)
    return await results_of(context, request, _operation)


def _operation(key: ShareKey, row: Any) -> WriteState:
    if len(row.state_batches) > SHARE_CHANGE_BATCHES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST,
            f"One change has at most {SHARE_CHANGE_BATCHES_MAX} batches of a share partition.",
        )
    return WriteState(
        key,
        row.state_epoch,
        row.leader_epoch,
        row.start_offset,
        row.delivery_complete_count,
        batches_of(row.state_batches),
    )

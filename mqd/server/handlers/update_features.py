"""UpdateFeatures (key 57), versions 0 to 2: sets levels of finalized features. Runs on the
controller.

v1 the type of the change in place of a flag; requests that are only checked. v2 one result for all
features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqd.controller.features import FeatureUpdate, UpdateFeatures, UpgradeType
from mqd.errors import ErrorCode, MqError
from mqd.raft.versions import FEATURE as METADATA_VERSION
from mqd.security.acls import Operation
from mqd.server.authorization import require_cluster
from mqd.server.context import Context, Node
from mqd.server.handlers.admin import at_controller
from mqd.types import NodeId

_UPDATES_MAX = 100


async def handle(context: Context, request: Any) -> Mapping[str, Any]:
    require_cluster(context, Operation.ALTER)
    if len(request.feature_updates) > _UPDATES_MAX:
        raise MqError(
            ErrorCode.INVALID_REQUEST, f"A request updates at most {_UPDATES_MAX} features."
        )
    updates = []
    for update in request.feature_updates:
        if context.header.api_version >= 1:
            kind = update.upgrade_type
        else:
            kind = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
        updates.append(FeatureUpdate(update.feature, update.max_version_level, kind))

    async def here() -> Mapping[str, Any]:
        node = context.node
        wanted = max((level for name, level, _ in updates if name == METADATA_VERSION), default=0)
        behind = tuple(
            node_id
            for node_id in sorted(node.image.brokers)
            if _metadata_version_max(node, node_id) < wanted
        )
        await node.controller.submit(UpdateFeatures(tuple(updates), request.validate_only, behind))
        return {
            "error_code": 0,
            "error_message": None,
            "results": [
                {"feature": update.name, "error_code": 0, "error_message": None}
                for update in updates
            ],
        }

    return await at_controller(context, request, here, request.timeout_ms)


def _metadata_version_max(node: Node, node_id: NodeId) -> int:
    """The newest `mqd.metadata.version` that the newest known process of a node supports."""
    reported = node.controller.metadata_version_max(node_id)
    # releases before version 3 report none
    return reported or (2 if node.raft.speaks_handshake_v3(node_id) else 1)


def failed(request: Any, error: MqError) -> dict[str, Any]:
    return {"error_code": error.code, "error_message": error.message or None, "results": []}

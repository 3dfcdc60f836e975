"""Whether the finalized `mqd.metadata.version` allows an operation (raft/versions.py)."""

from __future__ import annotations

from mqd.controller.image import MetadataImage
from mqd.errors import ErrorCode, MqError
from mqd.raft import versions


def check_security_allowed(image: MetadataImage) -> None:
    """Raise UNSUPPORTED_VERSION if a node may run a release that cannot read SCRAM credentials,
    ACLs and client quotas (I49).
    """
    finalized = image.features.get(versions.FEATURE, 0)
    if not versions.allows_security(finalized):
        raise _unsupported(finalized, "no SCRAM credentials, ACLs or client quotas")


def check_client_metrics_allowed(image: MetadataImage) -> None:
    """Raise UNSUPPORTED_VERSION if a node may run a release that does not know subscriptions of
    client metrics (I49).
    """
    finalized = image.features.get(versions.FEATURE, 0)
    if not versions.allows_client_metrics(finalized):
        raise _unsupported(finalized, "no subscriptions of client metrics")


def _unsupported(finalized: int, missing: str) -> MqError:
    return MqError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"The metadata of this cluster has version {finalized}, which has {missing}. Upgrade every "
        "node, then run 'mqctl feature upgrade'.",
    )

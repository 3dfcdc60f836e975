"""`mqctl feature`, with a fake cluster."""

from __future__ import annotations

from collections.abc import Callable

from tests.client.loopback import Loopback
from tests.ran import Ran

Mqctl = Callable[..., Ran]
NAME = "mqd.metadata.version"


def upgraded(served: Loopback) -> None:
    served.inside(lambda: served.cluster.features.update({NAME: (1, 1, 2)}))


def test_features_are_listed(mqctl: Mqctl, served: Loopback) -> None:
    upgraded(served)
    assert mqctl("feature", "list", "-o", "json").data == [
        {"name": NAME, "finalized": 1, "lowest": 1, "newest": 2}
    ]
    assert "FINALIZED" in mqctl("feature", "list").out


def test_the_newest_metadata_version_is_finalized_after_a_confirmation(
    mqctl: Mqctl, served: Loopback
) -> None:
    upgraded(served)
    checked = mqctl("feature", "upgrade", "--dry-run")
    assert (
        checked.code == 0
        and "dry run, the cluster would finalize: mqd.metadata.version=2" in checked.err
    )
    requested = mqctl("feature", "upgrade")
    assert (
        requested.code == 2
        and "1 -> 2" in requested.err
        and "no node can be downgraded" in requested.err
        and "--yes" in requested.err
    )
    assert served.cluster.features[NAME][0] == 1
    done = mqctl("feature", "upgrade", "--yes")
    assert done.code == 0 and "finalized: mqd.metadata.version=2" in done.err
    assert served.cluster.features[NAME][0] == 2
    again = mqctl("feature", "upgrade", "--yes")
    assert again.code == 0 and "nothing to change: mqd.metadata.version is 2" in again.err


def test_a_rejected_level_is_reported(mqctl: Mqctl, served: Loopback) -> None:
    upgraded(served)
    refused = mqctl("feature", "upgrade", f"{NAME}=3", "--yes")
    assert refused.code == 1 and "This version does not support it" in refused.err
    assert mqctl("feature", "upgrade", f"{NAME}=two").code == 2


def test_a_cluster_without_mqd_metadata_version_is_reported(mqctl: Mqctl, served: Loopback) -> None:
    refused = mqctl("feature", "upgrade", "--yes")
    assert refused.code == 1 and "this cluster has no mqd.metadata.version" in refused.err

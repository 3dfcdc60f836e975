"""The log entries, commands and handshakes that the finalized `mqd.metadata.version` allows. Pure.

A node of a new release may run beside nodes of the previous release. Until an administrator
finalizes the new version, every node of the cluster must be able to read what any of them writes.

    version 1    log entries: commands and no-ops; handshakes: version 2 (handshake_v2.py) or 3
    version 2    log entries: voter sets, too (voters.py); handshakes: version 3 only;
                 commands: disk serials, too (controller/records.py)
    version 3    commands: SCRAM credentials, ACLs and client quotas, too (controller/records.py);
                 listeners of brokers (controller/endpoints.py); subscriptions of client metrics
                 (controller/configs.py); share groups (the feature share.version), whose records
                 earlier releases cannot read

A node knows the version from the metadata that it has applied. Its quorum-state has the highest one
that it ever applied, because after a restart it applies the log only when it knows a leader. A
quorum-state that the release of version 1 wrote names none and means version 1. A node that was
formatted by this release knows none. Until it has applied one, it behaves as in the newest one: it
uses only handshake version 3. The version never decreases, so a downgrade to the previous release
is impossible.
"""

from __future__ import annotations

NEWEST = 3
FEATURE = "mqd.metadata.version"
SHARE_FEATURE = "share.version"
"""Kafka's feature of share groups (KIP-932)."""


def in_force(finalized: int, remembered: int | None) -> int:
    """The current version. `finalized`: by the applied metadata, 0 for none. `remembered`: from the
    quorum-state.
    """
    # It never decreases: the previous release can no longer read what is written (I49).
    return max(finalized, remembered or 0) or NEWEST


def allows_voter_sets(version: int) -> bool:
    """Whether log entries, snapshots and messages may contain voter sets."""
    return version >= 2


def allows_disk_serials(version: int) -> bool:
    """Whether commands and snapshots of the metadata may contain disk serials."""
    return version >= 2


def allows_security(version: int) -> bool:
    """Whether commands and snapshots may contain SCRAM credentials, ACLs and client quotas."""
    return version >= 3


def allows_endpoints(version: int) -> bool:
    """Whether commands and snapshots may contain the listeners of brokers."""
    return version >= 3


def allows_client_metrics(version: int) -> bool:
    """Whether commands and snapshots may contain subscriptions of client metrics."""
    return version >= 3


def allows_share_groups(version: int) -> bool:
    """Whether `share.version` may be finalized: earlier releases cannot read the records of share
    groups in internal topics.
    """
    return version >= 3


def allows_handshake_v2(version: int) -> bool:
    return version < 2

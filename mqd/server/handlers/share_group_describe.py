"""ShareGroupDescribe (key 77), version 1: share groups, member by member (KIP-932). Served by each
group's coordinator; the row of a group with another coordinator has an error.
"""

from __future__ import annotations

from mqd.server.handlers.consumer_group_describe import described_groups, failed

handle = described_groups

__all__ = ["failed", "handle"]

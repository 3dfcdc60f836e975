"""Which APIs each listener serves, and the handler module of each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from mqd.errors import MqError
from mqd.protocol import apis
from mqd.protocol.schema import Api
from mqd.server.context import Context

SERVED = (
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "alter_client_quotas",
    "alter_configs",
    "alter_partition_reassignments",
    "alter_share_group_offsets",
    "alter_user_scram_credentials",
    "api_versions",
    "consumer_group_describe",
    "consumer_group_heartbeat",
    "create_acls",
    "create_partitions",
    "create_topics",
    "delete_acls",
    "delete_groups",
    "delete_records",
    "delete_share_group_offsets",
    "delete_share_group_state",
    "delete_topics",
    "describe_acls",
    "describe_client_quotas",
    "describe_cluster",
    "describe_configs",
    "describe_groups",
    "describe_log_dirs",
    "describe_producers",
    "describe_quorum",
    "describe_share_group_offsets",
    "describe_topic_partitions",
    "describe_transactions",
    "describe_user_scram_credentials",
    "elect_leaders",
    "end_txn",
    "find_coordinator",
    "find_records",
    "heartbeat",
    "incremental_alter_configs",
    "init_producer_id",
    "initialize_share_group_state",
    "join_group",
    "leave_group",
    "list_config_resources",
    "list_groups",
    "list_offsets",
    "list_partition_reassignments",
    "list_transactions",
    "metadata",
    "offset_commit",
    "offset_delete",
    "offset_fetch",
    "offset_for_leader_epoch",
    "read_share_group_state",
    "read_share_group_state_summary",
    "share_acknowledge",
    "share_fetch",
    "share_group_describe",
    "share_group_heartbeat",
    "sync_group",
    "txn_offset_commit",
    "unregister_broker",
    "update_features",
    "write_share_group_state",
    "write_txn_markers",
)
"""The APIs that both listeners serve in addition to Fetch: one module of `handlers/` each, with the
name of its API.
"""

SERVED_TO_CLIENTS = (
    "create_delegation_token",
    "describe_delegation_token",
    "expire_delegation_token",
    "renew_delegation_token",
    "sasl_authenticate",
    "sasl_handshake",
)
"""APIs that only clients may use, besides Produce."""

SERVED_TO_PEERS = (
    "allocate_producer_ids",
    "alter_partition",
    "broker_heartbeat",
    "broker_registration",
    "claim_topic",
    "describe_acknowledged_offsets",
    "describe_unaccepted_records",
    "describe_idle_producer",
    "produce",
    "report_offline_replicas",
    "seal_transactions",
)
"""APIs that only other nodes may use; Produce in a form of its own (node_produce.py)."""

LOOKUPS = frozenset({"list_offsets"})
"""APIs that may search the log for a time."""

KEY_LOOKUPS = frozenset({"find_records"})
"""APIs that may search the log for a key."""

SHARE_OFFSETS = frozenset({"describe_share_group_offsets"})
"""APIs that read the states of all partitions of a group, from several share coordinators."""

GIVING_WAY = LOOKUPS | KEY_LOOKUPS | SHARE_OFFSETS
"""APIs whose requests give way to each other while they have a place (places.py)."""

READING = (
    frozenset(
        {
            "api_versions",
            "describe_cluster",
            "describe_topic_partitions",
            "metadata",
            "offset_for_leader_epoch",
        }
    ),
    frozenset(
        {
            "describe_acls",
            "describe_client_quotas",
            "describe_configs",
            "describe_log_dirs",
            "describe_producers",
            "describe_user_scram_credentials",
            "list_config_resources",
        }
    ),
    LOOKUPS,
    KEY_LOOKUPS,
)
"""APIs that only read the state of this broker: their work ends when the connection closes. Each
group has its own places, so that clients that need Metadata do not wait for the others.
"""

LISTING = frozenset({"list_groups", "list_transactions"})
"""The same, for the state of the coordinators."""

DESCRIBING = frozenset(
    {
        "consumer_group_describe",
        "describe_groups",
        "describe_share_group_offsets",
        "describe_transactions",
        "share_group_describe",
    }
)
"""The same. A short request can have a response of megabytes for each group that it names."""


class Handler:
    """One API's module of `handlers/`."""

    __slots__ = ("api", "failed", "handle", "has_many_rows", "name", "reads")

    def __init__(self, name: str) -> None:
        module = import_module(f"mqd.server.handlers.{name}")
        api = apis.by_name(name)
        assert api is not None, name
        self.api: Api = api
        self.handle: Callable[[Context, Any], Any] = module.handle
        self.failed: Callable[[Any, MqError], Any] | None = getattr(module, "failed", None)
        """The response to a request that is refused as a whole, or a generator that returns it
        (slices.py).
        """
        self.has_many_rows: Callable[[Any], bool] = getattr(module, "has_many_rows", _never)
        """Whether the response to a short request may have many rows. Few of these requests are
        carried out at once, because the rows are counted only when they are encoded."""
        self.name = name
        self.reads = name in frozenset().union(*READING, LISTING, DESCRIBING)


def _never(request: Any) -> bool:
    return False

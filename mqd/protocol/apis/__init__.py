"""All supported APIs, by key and by name.

One file declares one API; it is imported on first use.
"""

from __future__ import annotations

from importlib import import_module

from mqd.protocol.schema import Api

_MODULES = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    17: "sasl_handshake",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    35: "describe_log_dirs",
    36: "sasl_authenticate",
    37: "create_partitions",
    38: "create_delegation_token",
    39: "renew_delegation_token",
    40: "expire_delegation_token",
    41: "describe_delegation_token",
    42: "delete_groups",
    43: "elect_leaders",
    44: "incremental_alter_configs",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    47: "offset_delete",
    48: "describe_client_quotas",
    49: "alter_client_quotas",
    50: "describe_user_scram_credentials",
    51: "alter_user_scram_credentials",
    55: "describe_quorum",
    56: "alter_partition",
    57: "update_features",
    60: "describe_cluster",
    61: "describe_producers",
    62: "broker_registration",
    63: "broker_heartbeat",
    64: "unregister_broker",
    65: "describe_transactions",
    66: "list_transactions",
    67: "allocate_producer_ids",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    74: "list_config_resources",
    75: "describe_topic_partitions",
    76: "share_group_heartbeat",
    77: "share_group_describe",
    78: "share_fetch",
    79: "share_acknowledge",
    83: "initialize_share_group_state",
    84: "read_share_group_state",
    85: "write_share_group_state",
    86: "delete_share_group_state",
    87: "read_share_group_state_summary",
    90: "describe_share_group_offsets",
    91: "alter_share_group_offsets",
    92: "delete_share_group_offsets",
    32_002: "report_offline_replicas",
    32_003: "seal_transactions",
    32_004: "find_records",
    32_020: "claim_topic",
    32_021: "describe_idle_producer",
    32_022: "describe_acknowledged_offsets",
    32_023: "describe_unaccepted_records",
}

FIRST_OWN_KEY = 32_000
"""The first key of APIs that Apache Kafka does not have."""
SOFTWARE = "mqd"
"""The software name of clients that know these keys (KIP-511)."""

_KEYS = {module.replace("_", ""): key for key, module in _MODULES.items()}
_loaded: dict[int, Api] = {}


def by_key(key: int) -> Api | None:
    """The API with this key, or None."""
    api = _loaded.get(key)
    if api is None and key in _MODULES:
        api = _loaded[key] = import_module(f"{__name__}.{_MODULES[key]}").API
        assert api.key == key
    return api


def by_name(name: str) -> Api:
    """The API with Kafka's name ("ListOffsets") or its file's ("list_offsets").

    KeyError if there is none.
    """
    key = _KEYS.get(name.replace("_", "").lower())
    if key is None:
        raise KeyError(name)
    api = by_key(key)
    assert api is not None
    return api


def all_apis() -> tuple[Api, ...]:
    """Every API in the order of keys."""
    return tuple(api for api in map(by_key, sorted(_MODULES)) if api is not None)

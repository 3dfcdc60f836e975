"""`Admin` without await."""

from __future__ import annotations

from mqd.client.admin import Admin
from mqd.client.blocking_loop import BackgroundLoop, blocking


class BlockingAdmin:
    """`Admin` without await: the same methods, arguments, results and errors."""

    def __init__(self, loop: BackgroundLoop, wrapped: Admin) -> None:
        self._loop = loop
        self._wrapped = wrapped

    create_topics = blocking(Admin.create_topics)
    create_topic = blocking(Admin.create_topic)
    delete_topics = blocking(Admin.delete_topics)
    delete_topic = blocking(Admin.delete_topic)
    add_partitions = blocking(Admin.add_partitions)
    list_topics = blocking(Admin.list_topics)
    describe_topics = blocking(Admin.describe_topics)
    describe_configs = blocking(Admin.describe_configs)
    alter_configs = blocking(Admin.alter_configs)
    list_offsets = blocking(Admin.list_offsets)
    delete_records = blocking(Admin.delete_records)
    list_epoch_ends = blocking(Admin.list_epoch_ends)
    describe_producers = blocking(Admin.describe_producers)
    describe_cluster = blocking(Admin.describe_cluster)
    describe_log_dirs = blocking(Admin.describe_log_dirs)
    describe_partitions = blocking(Admin.describe_partitions)
    describe_quorum = blocking(Admin.describe_quorum)
    elect_leaders = blocking(Admin.elect_leaders)
    alter_partition_reassignments = blocking(Admin.alter_partition_reassignments)
    list_partition_reassignments = blocking(Admin.list_partition_reassignments)
    unregister_broker = blocking(Admin.unregister_broker)
    list_groups = blocking(Admin.list_groups)
    describe_groups = blocking(Admin.describe_groups)
    delete_groups = blocking(Admin.delete_groups)
    remove_members = blocking(Admin.remove_members)
    list_group_offsets = blocking(Admin.list_group_offsets)
    alter_group_offsets = blocking(Admin.alter_group_offsets)
    delete_group_offsets = blocking(Admin.delete_group_offsets)
    list_share_group_offsets = blocking(Admin.list_share_group_offsets)
    alter_share_group_offsets = blocking(Admin.alter_share_group_offsets)
    delete_share_group_offsets = blocking(Admin.delete_share_group_offsets)
    group_lag = blocking(Admin.group_lag)
    group_lags = blocking(Admin.group_lags)
    list_transactions = blocking(Admin.list_transactions)
    describe_transactions = blocking(Admin.describe_transactions)
    fence_producers = blocking(Admin.fence_producers)
    abort_transaction = blocking(Admin.abort_transaction)
    find_hanging_transactions = blocking(Admin.find_hanging_transactions)
    create_acls = blocking(Admin.create_acls)
    describe_acls = blocking(Admin.describe_acls)
    delete_acls = blocking(Admin.delete_acls)
    explain_access = blocking(Admin.explain_access)
    describe_user_scram_credentials = blocking(Admin.describe_user_scram_credentials)
    alter_user_scram_credentials = blocking(Admin.alter_user_scram_credentials)
    describe_client_quotas = blocking(Admin.describe_client_quotas)
    alter_client_quotas = blocking(Admin.alter_client_quotas)

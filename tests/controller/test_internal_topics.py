"""Topics that the cluster creates itself."""

from __future__ import annotations

from mqd.config import NodeConfig
from mqd.controller.internal_topics import new_topic_request


def test_min_isr_of_the_transaction_log_is_at_most_its_replication_factor() -> None:
    for nodes, wanted in ((1, ("1", 1)), (2, ("2", 2)), (5, ("2", 3))):
        row = new_topic_request("__transaction_state", NodeConfig.load(), nodes)
        configs = {one["name"]: one["value"] for one in row["configs"]}
        assert (configs["min.insync.replicas"], row["replication_factor"]) == wanted
        assert (configs["cleanup.policy"], configs["unclean.leader.election.enable"]) == (
            "compact",
            "false",
        )
        assert row["num_partitions"] == 50

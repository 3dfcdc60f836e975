"""The error about a missing marker shows the retention that the brokers have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from chaos.ensemble import Ensemble
from mqd.client.sync import BlockingClient
from pyspark_mqd.markers import ExactlyOnceError
from tests.spark.sink_tasks import Query

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


def test_a_young_marker_of_another_batch(
    client: BlockingClient, cluster: Ensemble, new_topic: Callable[..., str]
) -> None:
    query = Query(client, cluster, new_topic(1), "exactly-once")
    query.commit_rows(0, 0)
    with pytest.raises(ExactlyOnceError, match=r"has that of 0.*of the brokers \(10080\)"):
        query.commit_rows(1, 3)

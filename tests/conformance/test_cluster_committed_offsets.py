"""Committed offsets survive their coordinator's node, and so do offsets of open transactions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from chaos.ensemble import Ensemble

from .test_wire_committed_offsets import (
    NONE,
    SOON,
    UNSTABLE,
    Transactions,
    commit,
    fetch_group,
    fetched,
)
from .wire import Closed, Wire, until

GROUPS = 12
DEADLINE_S = 60.0


def coordinator_of(cluster: Ensemble, key: str, key_type: int = 0) -> Wire:
    """A connection to its current coordinator, which has loaded."""

    def connect() -> Wire | None:
        for node_id in cluster.running:
            with suppress(OSError, Closed, AssertionError):
                with Wire("127.0.0.1", cluster.nodes[node_id].port, 5) as wire:
                    (row,) = wire.ask(
                        "FindCoordinator", 4, key_type=key_type, coordinator_keys=[key]
                    ).coordinators
                if row.error_code != NONE or row.port not in {
                    cluster.nodes[one].port for one in cluster.running
                }:
                    continue
                found = Wire(row.host, row.port)
                if key_type == 1 or fetch_group(found, key, None).error_code not in SOON:
                    return found
                found.socket.close()
        return None

    found: Wire = until(connect, f"a coordinator of {key}", DEADLINE_S)
    return found


@pytest.fixture
def topic(cluster: Ensemble, new_name: Callable[[], str]) -> str:
    name = new_name()
    cluster.create_topic(name, partitions=2)
    return name


@pytest.fixture
def groups(new_name: Callable[[], str]) -> list[str]:
    return [new_name() for _ in range(GROUPS)]


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_every_acknowledged_commit_survives_its_coordinator(
    cluster: Ensemble, topic: str, groups: list[str], end: str
) -> None:
    committed = dict.fromkeys(groups, -1)
    for round_number, victim in enumerate(sorted(cluster.nodes)):
        for number, group in enumerate(groups):
            with coordinator_of(cluster, group) as wire:
                assert commit(wire, group, topic, {0: 100 * round_number + number}) == {0: NONE}
            committed[group] = 100 * round_number + number
        getattr(cluster.nodes[victim], end)()
        began = time.monotonic()
        for group, offset in committed.items():
            with coordinator_of(cluster, group) as wire:
                assert fetched(wire, group, topic, [0], stable=True) == {0: (offset, -1, "", NONE)}
        assert time.monotonic() - began < DEADLINE_S
        cluster.nodes[victim].start()
        cluster.wait_until(
            lambda: cluster.is_whole({topic: 2, "__consumer_offsets": 50}), "a full ISR"
        )


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_an_open_transaction_survive_the_coordinator(
    cluster: Ensemble, topic: str, groups: list[str], committed: bool
) -> None:
    group = groups[0]
    with coordinator_of(cluster, groups[1], 1) as transaction_coordinator:
        transactions = Transactions(transaction_coordinator, groups[1])
        with coordinator_of(cluster, group) as wire:
            assert commit(wire, group, topic, {0: 5}) == {0: NONE}
            transactions.add(group)
            assert transactions.commit(wire, group, topic, {0: 50, 1: 51}) == {0: NONE, 1: NONE}
            port = wire.socket.getpeername()[1]
    (victim,) = [node_id for node_id, node in cluster.nodes.items() if node.port == port]
    cluster.nodes[victim].kill()
    with coordinator_of(cluster, group) as wire:
        assert fetched(wire, group, topic, [0, 1]) == {0: (5, -1, "", NONE), 1: (-1, -1, "", NONE)}
        assert [row[3] for row in fetched(wire, group, topic, [0, 1], stable=True).values()] == [
            UNSTABLE,
            UNSTABLE,
        ]

    def ended() -> bool:
        with coordinator_of(cluster, groups[1], 1) as connection:
            code = connection.ask("EndTxn", 1, committed=committed, **transactions.who()).error_code
        assert code in {NONE, 51, *SOON}, code
        return bool(code == NONE)

    until(ended, "the transaction ends", DEADLINE_S)

    def settled() -> bool:
        with coordinator_of(cluster, group) as wire:
            found = fetched(wire, group, topic, [0, 1], stable=True)
            return [row[0] for row in found.values()] == ([50, 51] if committed else [5, -1])

    until(settled, "the offsets stand", DEADLINE_S)
    cluster.nodes[victim].start()

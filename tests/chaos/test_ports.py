"""Ports for broker processes: no two processes that start nodes get the same one."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from chaos.node import BLOCK_PORTS, LOOPBACK, NodeFailed, PortBlock


@pytest.fixture
def block() -> Iterator[PortBlock]:
    with closing(PortBlock()) as claimed:
        yield claimed


def test_two_processes_have_different_ports(block: PortBlock) -> None:
    """Also if neither of them listens yet."""
    with closing(PortBlock()) as other:
        taken = [set(one.take(10)) for one in (block, other) for _ in range(15)]
    assert len(set.union(*taken)) == 300


def test_a_claim_ends_with_its_process() -> None:
    first = 100_000 + os.getpid()
    nobodys = range(first, first + BLOCK_PORTS)
    for _ in range(2):
        with closing(PortBlock(nobodys)) as block:
            assert block.ports == nobodys
            with pytest.raises(NodeFailed, match="have claimed all blocks"):
                PortBlock(nobodys)


def test_a_port_is_given_again_only_after_all_others(block: PortBlock) -> None:
    first = [block.take(1)[0] for _ in range(BLOCK_PORTS)]
    assert sorted(first) == list(block.ports)
    assert block.take(1) == first[:1]


def test_ports_with_a_listener_are_left_out(block: PortBlock) -> None:
    start = block.ports.start
    with socket.create_server((LOOPBACK, start + 3)):
        assert block.take(2) == [start, start + 1]
        assert block.take(3) == [start + 4, start + 5, start + 6]


def test_ports_between_two_that_are_a_step_apart_are_taken_too(block: PortBlock) -> None:
    start = block.ports.start
    assert block.take(2, step=10) == [start, start + 10]
    assert block.take(1) == [start + 20]


def test_a_block_without_free_ports_is_an_error(block: PortBlock) -> None:
    block.ports = block.ports[:3]
    with socket.create_server((LOOPBACK, block.ports[1])):
        assert len(block.take(1)) == 1
        with pytest.raises(NodeFailed, match="no 2 free ports"):
            block.take(2)

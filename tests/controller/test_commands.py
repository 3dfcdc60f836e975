"""Commands survive encoding and decoding; malformed bytes are refused; large topics fit."""

from __future__ import annotations

import random
import zlib
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.controller import commands as c, records as r
from mqd.errors import ErrorCode, MqError
from mqd.limits import (
    METADATA_COMMAND_DECOMPRESSED_MAX,
    METADATA_COMMAND_ROWS,
    RAFT_COMMAND_BYTES_MAX,
)
from mqd.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from mqd.security.scram_credentials import ScramCredential, ScramMechanism
from mqd.types import NodeId

nodes = st.integers(0, 2**31 - 1).map(NodeId)
node_tuples = st.lists(nodes, max_size=5).map(tuple)
leaders = st.one_of(st.just(NodeId(-1)), nodes)
texts = st.text(max_size=30)
placements = st.builds(r.Placement, node_tuples, leaders, node_tuples)
changes = st.dictionaries(st.integers(0, 10**6), st.tuples(leaders, node_tuples), max_size=20).map(
    lambda rows: tuple(r.PartitionChange(index, *rows[index]) for index in sorted(rows))
)
maybe_nodes = st.none() | node_tuples
updates = st.dictionaries(
    st.integers(0, 10**6), st.tuples(st.none() | leaders, *[maybe_nodes] * 6), max_size=20
).map(lambda rows: tuple(r.PartitionUpdate(index, *rows[index]) for index in sorted(rows)))
mechanisms = st.sampled_from(ScramMechanism)
secrets = st.binary(max_size=64)
credentials = st.builds(ScramCredential, st.integers(0, 2**31 - 1), secrets, secrets, secrets)
acls = st.builds(
    Acl,
    st.sampled_from(ResourceType),
    texts,
    st.sampled_from(PatternType),
    texts,
    texts,
    st.sampled_from(Operation),
    st.sampled_from(Permission),
)
any_record = st.one_of(
    st.builds(r.FormatCluster, texts, st.lists(st.tuples(texts, st.integers(0, 100))).map(tuple)),
    st.builds(
        r.RegisterBroker,
        nodes,
        st.uuids(),
        texts,
        st.integers(0, 65535),
        st.none() | texts,
        st.integers(-1, 2**62),
    ),
    st.builds(r.SetBrokerFencing, nodes, st.integers(0, 2**62), st.booleans()),
    st.builds(
        r.CreateTopic,
        texts,
        st.uuids(),
        st.lists(placements).map(tuple),
        st.lists(st.tuples(texts, texts)).map(tuple),
    ),
    st.builds(r.DeleteTopic, st.uuids()),
    st.builds(r.AddPartitions, st.uuids(), st.integers(0, 10**6), st.lists(placements).map(tuple)),
    st.builds(r.ChangePartitions, st.uuids(), changes),
    st.builds(r.UpdatePartitions, st.uuids(), updates),
    st.builds(r.ShutDownBroker, nodes, st.integers(0, 2**62)),
    st.builds(r.UnregisterBroker, nodes, st.integers(0, 2**62)),
    st.builds(r.NoteDiskSerial, nodes, st.integers(0, 2**62), st.integers(0, 2**62)),
    st.builds(r.SetFeature, st.text(max_size=20), st.integers(0, 9)),
    st.builds(
        r.LoseReplicas,
        nodes,
        st.integers(0, 2**62),
        st.uuids(),
        st.sets(st.integers(0, 10**6)).map(lambda n: tuple(sorted(n))),
    ),
    st.builds(r.SetConfigs, texts, texts, st.lists(st.tuples(texts, st.none() | texts)).map(tuple)),
    st.builds(r.SetNextProducerId, st.integers(0, 2**63 - 1)),
    st.builds(r.SetScramCredential, texts, mechanisms, credentials),
    st.builds(r.DeleteScramCredential, texts, mechanisms),
    st.builds(r.CreateAcl, st.uuids(), acls),
    st.builds(r.DeleteAcl, st.uuids()),
    st.builds(
        r.SetClientQuotas,
        st.lists(st.tuples(texts, st.none() | texts)).map(tuple),
        st.lists(st.tuples(texts, st.none() | st.floats(0.0))).map(tuple),
    ),
)
commands = st.builds(c.Command, st.integers(0, 2**62), st.lists(any_record, max_size=8).map(tuple))


@given(commands)
def test_a_command_survives_encoding_and_decoding(command: c.Command) -> None:
    assert c.decode_command(c.encode_command(command)) == command


@given(commands, st.data())
def test_truncated_or_longer_bytes_are_refused(command: c.Command, data: st.DataObject) -> None:
    encoded = c.encode_command(command)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    for wrong in (encoded[:cut], encoded + b"\0"):
        with pytest.raises(ValueError):
            c.decode_command(wrong)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_without_other_errors(data: bytes) -> None:
    for head in (b"", b"\x01\x00"):
        try:
            c.decode_command(head + data)
        except ValueError:
            pass


def test_a_decompression_bomb_is_not_inflated() -> None:
    bomb = b"\x01\x01" + zlib.compress(bytes(METADATA_COMMAND_DECOMPRESSED_MAX + 1))
    assert len(bomb) < RAFT_COMMAND_BYTES_MAX
    with pytest.raises(ValueError, match="limit"):
        c.decode_command(bomb)


def test_other_formats_and_types_are_errors() -> None:
    with pytest.raises(ValueError, match="version"):
        c.decode_command(b"\x02\x00\x00\x00")
    with pytest.raises(ValueError, match="type 99"):
        c.decode_command(b"\x01\x00\x00\x01\x63\x00")


@pytest.mark.parametrize("factor", [1, 3, 5])
def test_ten_thousand_partitions_fit_one_record(factor: int) -> None:
    """With replicas in any order: as random as an operator's own assignment can be."""
    dice = random.Random(7)
    lists = [tuple(NodeId(n) for n in dice.sample(range(1, 6), factor)) for _ in range(10_000)]
    topic = r.CreateTopic(
        "big", UUID(int=7), tuple(r.Placement(nodes, nodes[0], nodes) for nodes in lists), ()
    )
    c.check_fits(topic)
    assert c.decode_command(c.encode_command(c.Command(0, (topic,)))).records == (topic,)


def test_oversized_commands_are_refused_with_their_size() -> None:
    dice = random.Random(7)
    configs = tuple(
        (f"k{i}", "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=30_000)))
        for i in range(4)
    )
    with pytest.raises(MqError) as refusal:
        c.check_fits(r.CreateTopic("big", UUID(int=7), (), configs))
    assert refusal.value.code is ErrorCode.POLICY_VIOLATION
    assert str(RAFT_COMMAND_BYTES_MAX) in refusal.value.message


def test_a_large_decision_is_split_into_commands_that_fit() -> None:
    dice = random.Random(7)
    records = tuple(r.DeleteTopic(UUID(int=dice.getrandbits(128))) for _ in range(10_000))
    runs = list(c.split_records(records))
    assert len(runs) > 1
    assert tuple(record for run in runs for record in run) == records
    for run in runs:
        assert len(run) <= METADATA_COMMAND_ROWS
        assert len(c.encode_command(c.Command(2**62, run))) <= RAFT_COMMAND_BYTES_MAX


def test_large_values_do_not_share_a_command() -> None:
    values = (("k", "x" * 16_000),)
    records = tuple(r.SetConfigs("topic", f"t{number}", values) for number in range(5))
    assert [len(run) for run in c.split_records(records)] == [2, 2, 1]


def test_partitions_count_for_the_size_of_a_command() -> None:
    me = NodeId(1)
    partitions = (r.Placement((me,), me, (me,)),) * (METADATA_COMMAND_ROWS // 2)
    records = tuple(r.CreateTopic(f"t{n}", UUID(int=n), partitions, ()) for n in range(1, 4))
    assert [len(run) for run in c.split_records(records)] == [2, 1]

"""With nodes of the previous release: what is written, what is read, and how the new version comes
into force.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from mqd.errors import ProtocolError
from mqd.raft import formats, versions
from mqd.raft.codec import (
    AppendEntries,
    Entry,
    RecoveryQuery,
    RecoveryReply,
    decode_message,
    encode_message,
)
from mqd.raft.handshake import PROTOCOL_VERSION
from mqd.raft.handshake_listener import ListenerHandshake
from mqd.raft.handshake_versions import HandshakeVersions
from mqd.raft.journal_start import open_journal
from mqd.raft.node import RaftNode
from mqd.raft.service import RaftService
from mqd.raft.voter_recovery import VoterRecovery
from mqd.raft.voters import CONFIGURATION, VoterSet
from tests.raft.directed import Ours
from tests.raft.test_journal import all_of
from tests.raft.test_service import three_voters, until

THREE = frozenset({1, 2, 3})

# recorded from the previous release
OLD_STATE = (
    b'{"version": 1, "cluster_id": "c", "node_id": 1, "node_uuid": '
    b'"00000000-0000-0000-0000-000000000005", "term": 7, "vote": 2,'
    b' "formed": true}\n1f55df2e\n'
)
OLD_SNAPSHOT = bytes.fromhex(
    "6d7164534e41500ae747b71800010000000000000009000000000000000300000000000000050001637374617465"
)
OLD_ACCOUNT = bytes.fromhex("7604db310b00000000000000070000000000000005000000000000000901")


# -- bytes


def test_the_version_in_force() -> None:
    # formatted by this release, nothing applied yet
    assert versions.in_force(0, None) == versions.NEWEST
    assert versions.in_force(0, 1) == versions.in_force(1, None) == versions.in_force(1, 1) == 1
    # 1 is applied again after a restart
    assert versions.in_force(2, 1) == versions.in_force(1, 2) == 2
    assert versions.allows_handshake_v2(1) and not versions.allows_voter_sets(1)
    assert versions.allows_voter_sets(2) and not versions.allows_handshake_v2(2)
    assert versions.allows_security(3) and not versions.allows_security(2)


def test_a_state_of_the_previous_release_means_version_1_and_stays_readable() -> None:
    old = formats.decode_state(OLD_STATE)
    assert old == formats.QuorumState(
        "c", 1, UUID(int=5), 7, 2, intact=True, voters=None, forced=None, metadata_version=1
    )
    for version in (None, 1, 2, 3):
        state = replace(old, metadata_version=version, voters=THREE)
        assert formats.decode_state(formats.encode_state(state)) == state


def test_a_snapshot_without_voters_has_the_form_of_the_previous_release() -> None:
    snapshot = formats.Snapshot("c", 9, 3, b"state")
    assert formats.decode_snapshot(OLD_SNAPSHOT) == snapshot
    assert formats.encode_snapshot(snapshot) == OLD_SNAPSHOT


def test_an_account_without_voters_has_the_form_of_the_previous_release() -> None:
    account = RecoveryReply(7, 5, 9, True, None)
    assert decode_message(OLD_ACCOUNT) == account
    assert encode_message(account) == OLD_ACCOUNT


def test_a_voter_that_starts_from_nothing_counts_accounts_of_both_releases() -> None:
    recovery = VoterRecovery(1, {1, 2, 3}, nonce=5)
    recovery.on_reply(2, RecoveryReply(4, 5, 9, True, None))
    assert recovery.may_follow() is None
    recovery.on_reply(3, RecoveryReply(6, 5, 9, True, VoterSet(1, THREE)))
    assert recovery.may_follow() == 6
    old_only = VoterRecovery(1, {1, 2, 3}, nonce=5)
    for node in (2, 3):
        old_only.on_reply(node, RecoveryReply(4, 5, 9, True, None))
    assert old_only.may_follow() == 4


# -- what is written


class Upgrading(Ours):
    """Three voters whose state machine has the version that the test sets."""

    def __init__(self, finalized: int) -> None:
        self.finalized = finalized
        super().__init__(3)

    def node_class(self, **options: Any) -> RaftNode:  # type: ignore[override]  # adds one option
        return RaftNode(**options, finalized=lambda: self.finalized)

    def commands(self, i: int) -> list[bytes]:
        return [entry.command for entry in self.journals[i].entries[1:]]

    def lead(self) -> None:
        self.elect(1, [2, 3])
        self.exchange(self.ids, 6)
        assert self.leads(1)


def sets_in(commands: list[bytes]) -> list[bytes]:
    return [command for command in commands if command[:1] == CONFIGURATION]


def test_voters_are_logged_when_the_version_is_finalized() -> None:
    ours = Upgrading(1)
    ours.lead()
    ours.add(1, "while nodes of both releases run")
    ours.exchange(ours.ids, 6)
    assert all(ours.values(i) == ["while nodes of both releases run"] for i in ours.ids)
    assert not any(sets_in(ours.commands(i)) for i in ours.ids)
    ours.finalized = 2
    ours.add(1, "finalized")
    ours.exchange(ours.ids, 6)
    assert all(len(sets_in(ours.commands(i))) == 1 for i in ours.ids)
    assert all(ours.nodes[i].voter_view.committed == VoterSet(1, THREE) for i in ours.ids)
    assert all(ours.journals[i].metadata_version == 2 for i in ours.ids)


def test_a_new_cluster_writes_voters_at_once() -> None:
    ours = Upgrading(0)
    ours.lead()
    assert all(len(sets_in(ours.commands(i))) == 1 for i in ours.ids)


def test_the_version_is_stored_and_does_not_fall_during_a_replay() -> None:
    ours = Upgrading(2)
    ours.lead()
    ours.add(1, "finalized")
    ours.exchange(ours.ids, 6)
    ours.finalized = 1  # as while an older part of the log is applied after a restart
    ours.journals[2].close()
    ours.start(2)
    assert ours.journals[2].metadata_version == 2 and ours.nodes[2].metadata_version == 2
    ours.journals[2].set_metadata_version(1)
    assert ours.journals[2].metadata_version == 2


def test_a_snapshot_of_version_1_has_no_voters_even_after_a_forced_set() -> None:
    ours = Upgrading(1)
    ours.lead()
    ours.journals[1].force_voters(THREE)
    ours.add(1, "something")
    ours.exchange(ours.ids, 6)
    ours.compact(1)
    assert formats.decode_snapshot(all_of(ours.journals[1].snapshot_source())).voters is None
    ours = Upgrading(2)
    ours.lead()
    ours.add(1, "something")
    ours.exchange(ours.ids, 6)
    ours.compact(1)
    assert formats.decode_snapshot(all_of(ours.journals[1].snapshot_source())).voters == VoterSet(
        1, THREE
    )


@pytest.mark.parametrize(("finalized", "voters"), [(1, None), (2, VoterSet(1, THREE))])
def test_a_query_gets_a_response_in_its_sender_s_version(
    finalized: int, voters: VoterSet | None
) -> None:
    ours = Upgrading(finalized)
    ours.lead()
    ours.boxes[2].clear()
    ours.deliver(3, 2, RecoveryQuery(0, 5))
    (answer,) = [
        message
        for message in map(decode_message, ours.take(2, 3))
        if isinstance(message, RecoveryReply)
    ]
    assert answer.voter_set == voters


def test_an_old_directory_uses_version_2_until_all_voters_are_newer() -> None:
    ours = Upgrading(0)
    disk = ours.disks[1]
    journal = open_journal(
        disk, Path("old"), cluster_id="c", node_id=1, new_uuid=lambda: UUID(int=5)
    )
    journal.close()
    disk.write_atomic(Path("old/quorum-state"), OLD_STATE)
    journal = open_journal(
        disk, Path("old"), cluster_id="c", node_id=1, new_uuid=lambda: UUID(int=6)
    )
    assert (journal.term, journal.vote, journal.intact, journal.metadata_version) == (7, 2, True, 1)


def test_entries_of_a_voter_set_still_decode_with_either_version() -> None:
    """Only writing is gated: a follower accepts what its leader may already write."""
    entry = Entry(b"\x02" + bytes.fromhex("00000001 0001 00000001"), 5, 3)
    message = AppendEntries(3, 4, 4, 3, (entry,))
    assert decode_message(encode_message(message)) == message


# -- which handshake version each node uses


def test_calls_alternate_only_while_version_3_is_closed() -> None:
    known = HandshakeVersions()
    assert not known.uses_v2(2)
    known.use_v2(2)
    assert known.uses_v2(2) and not known.uses_v2(3)
    known.use_v3(2)
    assert not known.uses_v2(2)


def test_a_process_that_used_version_3_once_has_this_release() -> None:
    known = HandshakeVersions()
    old, new = UUID(int=1), UUID(int=2)
    assert not known.speaks_v3(2)
    assert known.on_handshake(2, old, in_v3=False) and not known.speaks_v3(2)
    assert not known.on_handshake(2, old, in_v3=False)  # reported once
    assert not known.on_handshake(2, new, in_v3=True) and known.speaks_v3(2)
    assert not known.on_handshake(2, new, in_v3=False) and known.speaks_v3(2)
    # it was downgraded to the previous release
    assert known.on_handshake(2, old, in_v3=False) and not known.speaks_v3(2)


class ServiceOfTheReleaseBefore(RaftService):
    """It calls in handshake version 2 only, and closes a connection on a hello of version 3."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.peer_links.handshakes.versions.uses_v2 = lambda peer: True  # type: ignore[method-assign]  # replaced by the test
        self._credentials.allows_v2 = self._allows_handshake_v2

    def _allows_handshake_v2(self) -> bool:
        return True

    def receive_handshake(
        self, handshake: ListenerHandshake, body: bytes | memoryview, correlation_id: int
    ) -> bytes:
        if bytes(body[:6]) == b"mqdQ" + PROTOCOL_VERSION.to_bytes(2, "big"):
            raise ProtocolError("a handshake of protocol version 3; this node uses 2")
        return super().receive_handshake(handshake, body, correlation_id)


async def test_nodes_of_both_releases_form_a_quorum_before_finalization(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    level = [1]
    async with three_voters(tmp_path) as voters:
        voters.options = {"finalized": lambda: level[0]}
        for i in (1, 2):
            await voters.start(i)
        voters.make = ServiceOfTheReleaseBefore
        await voters.start(3)
        leader = await voters.wait_leader()
        await voters.services[leader].propose(b"one")
        await until(lambda: all(voters.machines[i].commands == [b"one"] for i in (1, 2, 3)))
        new = voters.services[1]
        await until(
            lambda: (
                not new.speaks_handshake_v3(3)
                and new.speaks_handshake_v3(2)
                and new.speaks_handshake_v3(1)
            )
        )
        await until(lambda: all(len(voters.services[i].status().connected) == 2 for i in (1, 2, 3)))
        assert any(
            "a node runs the previous release node=3" in record.message for record in caplog.records
        )

        voters.kill(3)
        voters.make = RaftService
        await voters.start(3)
        await until(
            lambda: (
                voters.services[1].speaks_handshake_v3(3)
                and voters.services[2].speaks_handshake_v3(3)
            )
        )
        leader = await voters.wait_leader()
        level[0] = 2
        await voters.services[leader].propose(b"two")
        await until(
            lambda: all(voters.services[i]._voter_view().committed.epoch == 1 for i in (1, 2, 3))
        )

        voters.kill(3)
        voters.break_connections()
        voters.refused.clear()
        voters.make = ServiceOfTheReleaseBefore
        await voters.start(3)
        await until(
            lambda: any(
                "version 2, which the previous release uses" in why for why in voters.refused
            )
        )
        await until(lambda: all(3 not in voters.services[i].status().connected for i in (1, 2)))

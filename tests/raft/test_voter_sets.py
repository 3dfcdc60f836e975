"""Nodes with different peers files: at most one group decides, and voters are added or removed one
at a time.
"""

from __future__ import annotations

from typing import Any

import pytest

from mqd.errors import ProtocolError
from mqd.raft.node import RaftNode
from mqd.raft.voters import (
    VOTERS_MAX,
    VoterSet,
    VoterView,
    decode_entry,
    decode_set,
    disagreement,
    encode_entry,
    encode_set,
    next_set,
    obstacle,
    unreachable_by_one_step,
)
from tests.raft.directed import Ours
from tests.raft.simulate import Violation, World
from tests.seeds import seeds


def voters(*ids: int) -> frozenset[int]:
    return frozenset(ids)


class Files(Ours):
    """Each node has the voters of its own peers file; new nodes start from nothing."""

    intact = False

    def __init__(self, nodes: int, file: frozenset[int]) -> None:
        self.files = dict.fromkeys(range(1, nodes + 1), file)
        super().__init__(nodes)
        self.meet(self.ids)

    def start(self, i: int) -> None:
        everyone, self.ids = self.ids, sorted(self.files[i])
        self.observers = [one for one in everyone if one not in self.files[i]]
        super().start(i)
        self.ids = everyone

    def refusal(self, a: int, b: int) -> str | None:
        return disagreement(a, self.nodes[a].voter_view, b, self.nodes[b].voter_view)

    def meet(self, among: list[int]) -> None:
        """Connect all nodes that do not refuse each other."""
        for i in among:
            for other in among:
                if i != other and self.refusal(i, other) is None:
                    self.nodes[i].peer_configured(other, self.files[other])
                    self.connect(i, other)

    def restart(self, i: int, file: frozenset[int], among: list[int] | None = None) -> None:
        among = among if among is not None else self.ids
        self.files[i] = file
        self.journals[i].close()
        self.start(i)
        self.boxes[i].clear()
        for other in among:
            if other != i:
                self.nodes[other].disconnected(i)
                self.nodes[other].restarted(i)
        self.meet(among)

    def exchange(self, among: list[int], rounds: int = 4) -> None:
        for _ in range(rounds):
            self.advance()
            for i in among:
                self.tick(i)
                for to, message in self._empty(i):
                    if to in among and self.refusal(i, to) is None:
                        self.deliver(i, to, message)

    def leaders(self, among: list[int]) -> list[int]:
        return [i for i in among if self.leads(i)]

    def sets(self) -> list[VoterSet]:
        return [self.nodes[i].voter_view.committed for i in self.ids]


def formed(nodes: int, file: frozenset[int]) -> Files:
    ours = Files(nodes, file)
    ours.exchange(ours.ids, 60)
    ours.add(ours.leaders(ours.ids)[0], "before")
    ours.exchange(ours.ids, 6)
    assert all(ours.values(i) == ["before"] for i in ours.ids)
    return ours


def test_two_groups_with_different_files_never_both_decide() -> None:
    """Five voters; two of them restart with a file that names three of them, and are cut off from
    the others.
    """
    ours = formed(5, voters(1, 2, 3, 4, 5))
    left, right = [1, 2], [3, 4, 5]
    for i in left:
        ours.restart(i, voters(1, 2, 3), left)
    for _ in range(60):
        ours.exchange(left, 1)
        ours.exchange(right, 1)
    for group in (left, right):
        for leader in ours.leaders(group):
            ours.add(leader, f"decided by {leader}")
    for _ in range(10):
        ours.exchange(left, 1)
        ours.exchange(right, 1)
    decided = [group for group in (left, right) if any(len(ours.values(i)) > 1 for i in group)]
    assert decided == [right]
    refusal = ours.refusal(1, 4)
    assert refusal is not None
    for part in (
        "node 1 names voters [1, 2, 3]",
        "node 4 names [1, 2, 3, 4, 5]",
        "are [1, 2, 3, 4, 5] (epoch 1)",
        "Change one voter at a time",
    ):
        assert part in refusal


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((1,), (1, 2)),
        ((1, 2), (1, 2, 3)),
        ((1, 2, 3), (1, 2, 3, 4)),
        ((1, 2, 3, 4), (1, 2, 3, 4, 5)),
    ],
)
@pytest.mark.parametrize("manual", [True, False])
def test_one_voter_is_added_and_removed_node_by_node(
    old: tuple[int, ...], new: tuple[int, ...], manual: bool
) -> None:
    """`manual`: the new voter restarts first and the removed one last; otherwise in the opposite
    order, which only takes longer.
    """
    everyone, one = len(new), new[-1]
    ours = formed(everyone, voters(*old))
    for epoch, file, last_first in ((2, voters(*new), manual), (3, voters(*old), not manual)):
        order = [i for i in ours.ids if i != one]
        for i in [one, *order] if last_first else [*order, one]:
            ours.restart(i, file)
            ours.exchange(ours.ids, 40)
            ours.meet(ours.ids)
        ours.exchange(ours.ids, 60)
        assert ours.sets() == [VoterSet(epoch, file)] * everyone
        (leader,) = ours.leaders(ours.ids)
        assert leader in file
        ours.add(leader, f"in {epoch}")
        ours.exchange(ours.ids, 6)
        assert all(ours.values(i)[-1:] == [f"in {epoch}"] for i in ours.ids)


def test_a_file_that_names_two_more_voters_is_reported_and_ignored() -> None:
    ours = formed(5, voters(1, 2, 3))
    for i in ours.ids:
        ours.restart(i, voters(1, 2, 3, 4, 5))
    for _ in range(4):
        ours.meet(ours.ids)
        ours.exchange(ours.ids, 40)
    assert ours.sets() == [VoterSet(1, voters(1, 2, 3))] * 5 and len(ours.leaders(ours.ids)) == 1
    problem = ours.nodes[1].peers_file_problem(ours.now) or ""
    assert "names voters [1, 2, 3, 4, 5]; the quorum has committed [1, 2, 3] (epoch 1)" in problem
    for i in ours.ids:
        ours.restart(i, voters(1, 2, 3, 4))
    ours.exchange(ours.ids, 80)
    assert (
        ours.sets() == [VoterSet(2, voters(1, 2, 3, 4))] * 5
        and ours.nodes[1].peers_file_problem(ours.now) is None
    )


def test_an_uncommitted_set_is_removed_with_its_entry() -> None:
    ours = formed(4, voters(1, 2, 3))
    (leader,) = ours.leaders(ours.ids)
    others = [i for i in (1, 2, 3) if i != leader]
    node = ours.nodes[leader]
    before = node.voters
    node._members.configured = voters(1, 2, 3, 4)  # as if it and most others ran with that file
    for other in [*others, 4]:
        node.peer_configured(other, node._members.configured)
    ours.tick(leader)
    assert node.voters == voters(1, 2, 3, 4) and node.voter_view.committed.voters == before
    ours.take(leader)
    node._members.configured = before
    ours.exchange(others, 60)
    ours.add(ours.leaders(others)[0], "another")
    ours.exchange([*others, 4], 8)
    ours.exchange(ours.ids, 40)
    assert all(ours.nodes[i].voters == before for i in ours.ids)
    assert all(ours.values(i) == ["before", "another"] for i in ours.ids)


class ChangesBeforeItsOwnEntry(RaftNode):
    """A leader that changes the set before it has committed an entry of its own term."""

    @property
    def ready(self) -> bool:
        return self.is_leader


def two_leaders_change_the_same_set(ours: Files) -> set[int]:
    """The example that led to Ongaro's correction of 2015.

    Returns which changes are committed: 2 for the second leader's, 5 for the first leader's.
    """
    (first,) = ours.leaders(ours.ids)
    second, third, fourth = (i for i in (1, 2, 3, 4) if i != first)
    five = voters(1, 2, 3, 4, 5)
    for i in (first, 5):
        ours.nodes[i]._members.configured = five
    for other in (second, third, 5):
        ours.nodes[first].peer_configured(other, five)
    ours.exchange([first, 5], 3)  # the first leader adds 5, which is the only node that receives it
    assert ours.nodes[5].voters == five
    ours.advance(2.0)
    ours.elect(second, [third, fourth])
    ours.nodes[second]._members.configured = smaller = voters(second, third, fourth)
    for other in (third, fourth):
        ours.nodes[second].peer_configured(other, smaller)
    # the second leader removes the first one; the fourth receives nothing of that
    ours.exchange([second, third], 6)
    for _ in range(60):
        ours.exchange([first, fourth, 5], 1)
    committed = {
        2 * (ours.nodes[second].voter_view.committed.voters == smaller),
        5 * (ours.nodes[first].voter_view.committed.voters == five),
    }
    return committed - {0}


def test_a_leader_changes_the_set_only_after_an_entry_of_its_own_term() -> None:
    assert two_leaders_change_the_same_set(formed(5, voters(1, 2, 3, 4))) == {5}
    ours = formed(5, voters(1, 2, 3, 4))
    for i in ours.ids:
        ours.nodes[i].__class__ = ChangesBeforeItsOwnEntry
    assert two_leaders_change_the_same_set(ours) == {2, 5}, "without the rule, both are committed"


def test_the_set_survives_a_snapshot_and_a_restart_with_another_file() -> None:
    ours = formed(3, voters(1, 2))
    leader = ours.leaders(ours.ids)[0]
    other = 3 - leader
    for k in range(4):
        ours.add(leader, f"v{k}")
    ours.exchange([leader, other], 6)
    ours.compact(leader)
    ours.compact(other)
    ours.exchange(ours.ids, 8)  # 3 gets the snapshot
    for i in ours.ids:
        ours.restart(i, voters(3), [i])
        assert ours.nodes[i].voters == voters(1, 2) and ours.nodes[i].voter_view.current.epoch == 1
    for _ in range(40):
        ours.exchange([3], 1)
    assert not ours.leads(3)


def test_a_file_change_before_the_first_entry_forms_no_second_cluster() -> None:
    """All five have connected; two get another file before they have formed."""
    ours = Files(5, voters(1, 2, 3, 4, 5))
    ours.exchange(ours.ids, 2)
    for i in (1, 2):
        ours.restart(i, voters(1, 2), [1, 2])
    for _ in range(60):
        ours.exchange([1, 2], 1)
        ours.exchange([3, 4, 5], 1)
    assert ours.leaders([1, 2]) == [] and len(ours.leaders([3, 4, 5])) == 1


def test_remaining_voters_decide_when_an_operator_forces_their_set() -> None:
    """Three of five are permanently lost."""
    ours = formed(5, voters(1, 2, 3, 4, 5))
    left = [1, 2]
    for i in left:
        ours.restart(i, voters(1, 2), left)
    ours.exchange(left, 60)
    assert ours.leaders(left) == []
    for i in left:
        ours.journals[i].force_voters(voters(1, 2))
        ours.journals[i].flush()
        ours.restart(i, voters(1, 2), left)
    ours.exchange(left, 80)
    (leader,) = ours.leaders(left)
    ours.add(leader, "after")
    ours.exchange(left, 6)
    for i in left:
        assert ours.values(i) == ["before", "after"]
        assert (
            ours.nodes[i].voter_view.committed.voters == voters(1, 2)
            and ours.journals[i].records_voters
        )
    ours.disks[3].files.clear()
    ours.journals[3].close()
    together = [1, 2, 3]
    for i in (3, 1, 2):
        ours.restart(i, voters(1, 2, 3), together)
        ours.exchange(together, 40)
    ours.exchange(together, 40)
    assert all(ours.nodes[i].voters == voters(1, 2, 3) for i in together)
    assert ours.values(3) == ["before", "after"]


def test_a_recovery_reply_with_a_wrong_peers_file_allows_following() -> None:
    ours = formed(4, voters(1, 2, 3))
    ours.journals[4].close()
    ours.disks[4].files.clear()
    ours.start(4)
    ours.journals[4].set_first_voters(voters(1, 4))
    ours.journals[4].flush()
    ours.restart(4, voters(1, 2, 3))
    assert ours.nodes[4].not_voting_reason is None and ours.nodes[4].voter_view.current == VoterSet(
        0, voters(1, 4)
    )
    ours.exchange(ours.ids, 20)
    assert ours.nodes[4].voters == voters(1, 2, 3) and ours.values(4) == ["before"]


def test_next_set() -> None:
    three, four = voters(1, 2, 3), voters(1, 2, 3, 4)
    current, agreed = VoterSet(1, three), {2: four, 4: four}

    def after(
        file: frozenset[int] = four, current: VoterSet = current, **changes: Any
    ) -> VoterSet | None:
        return next_set(
            1,
            file,
            current,
            **{
                "recorded": True,
                "committed": True,
                "configured_by_peer": agreed,
                "caught_up": voters(4),
                **changes,
            },
        )

    assert after() == VoterSet(2, four)
    assert after(recorded=False, current=VoterSet(0, three)) == VoterSet(1, three), (
        "the first one records the set in force"
    )
    assert after(committed=False) is None
    assert after(three) is None
    assert after(voters(1, 2, 3, 4, 5)) is None
    assert after(configured_by_peer={4: four}) is None, "1 and 4 are not a majority of either set"
    assert after(configured_by_peer={2: four, 3: four}) is None, "4 does not vote by its own file"
    assert after(caught_up=voters()) is None
    assert after(recovering=voters(4)) is None, "4 does not vote yet"
    assert after(recovering=voters(2, 3)) is None, "only 1 of the current voters votes"
    assert after(recovering=voters(3)) == VoterSet(2, four)
    two = voters(1, 2)
    assert after(two, configured_by_peer={2: two}, recovering=voters(2)) is None, (
        "both votes are needed after the removal"
    )
    assert after(voters(1, 2), configured_by_peer={2: voters(1, 2)}) == VoterSet(2, voters(1, 2)), (
        "a dead voter is removed without its consent"
    )
    assert after(voters(2, 3), configured_by_peer={2: voters(2, 3), 3: voters(2, 3)}) is None, (
        "a leader does not remove itself"
    )


def test_a_change_reports_what_it_waits_for() -> None:
    current, four = VoterSet(1, THREE), FOUR

    def found(files: dict[int, frozenset[int]], caught_up: frozenset[int] = FOUR) -> str | None:
        return obstacle(1, four, current, configured_by_peer=files, caught_up=caught_up)

    assert found({2: four}) == "node 4 does not use this file yet"
    assert found({2: four, 4: four}, THREE) == "node 4 has not copied the metadata yet"
    assert (
        found({4: four}) == "of the voters [1, 2, 3], only [1] run with this file; a majority must"
    )
    assert found({2: four, 4: four}) is None
    assert obstacle(
        1,
        four,
        current,
        configured_by_peer={2: four, 4: four},
        caught_up=FOUR,
        recovering=voters(2, 3),
    ) == ("of the voters [1, 2, 3], [2, 3] do not vote yet: they started with an empty log")


@pytest.mark.parametrize("seed", seeds(1, [35, 29, 33]))
def test_a_voter_set_never_needs_the_vote_of_a_node_in_recovery(seed: int) -> None:
    """The leader of one voter added a second one before that one voted. After a restart of both,
    neither could be elected any more.
    """
    World(seed, nodes=3, observers=2, changes=True).run()


THREE, FOUR = voters(1, 2, 3), voters(1, 2, 3, 4)


def at(
    file: frozenset[int], current: frozenset[int], *, epoch: int = 1, intact: bool = True
) -> VoterView:
    return VoterView(file, VoterSet(epoch, current), VoterSet(epoch, current), intact)


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (at(THREE, THREE), at(THREE, THREE), None),
        (
            at(FOUR, THREE),
            at(THREE, THREE, intact=False),
            "node 4 is a voter by the file of node 1 and not by its own",
        ),
        (at(THREE, THREE), at(FOUR, THREE), None),
        (at(THREE, THREE), at(voters(1, 2, 3, 4, 5), THREE), "may differ by one voter"),
        (at(THREE, THREE), at(voters(1, 2, 4), THREE), "may differ by one voter"),
        (at(THREE, FOUR), at(THREE, FOUR), None),
        (
            at(THREE, FOUR),
            at(THREE, FOUR, intact=False),
            "node 4 starts with an empty log and is still a voter by the log of node 1",
        ),
        (at(THREE, THREE, epoch=0), at(FOUR, FOUR, epoch=0), "no voter set is committed yet"),
        (at(THREE, THREE, epoch=0), at(THREE, FOUR, epoch=0), "no voter set is committed yet"),
        (at(THREE, THREE), at(FOUR, FOUR, epoch=0, intact=False), None),
    ],
)
def test_nodes_with_these_voter_sets_do_not_connect(
    ours: VoterView, theirs: VoterView, why: str | None
) -> None:
    for found in (disagreement(1, ours, 4, theirs), disagreement(4, theirs, 1, ours)):
        assert found is None if why is None else why in (found or "")


def test_voter_sets_as_bytes() -> None:
    voter_set = VoterSet(7, voters(5, 1, 2**31 - 1))
    assert decode_entry(encode_entry(voter_set)) == voter_set
    assert decode_set(b"xx" + encode_set(voter_set) + b"yy", 2) == (voter_set, 2 + 6 + 12)
    good = encode_entry(voter_set)
    out_of_order = good[:7] + good[11:15] + good[7:11] + good[15:]
    for bad in (
        b"\2",
        good[:-1],
        good + b"x",
        b"\1" + good[1:],
        encode_entry(VoterSet(0, voters(1))),
        out_of_order,
    ):
        with pytest.raises(ProtocolError):
            decode_entry(bad)
    for size in (0, VOTERS_MAX + 1):
        with pytest.raises(ProtocolError, match="A voter set of"):
            decode_set(encode_set(VoterSet(1, frozenset(range(size)))))


def test_one_step_changes_one_voter() -> None:
    assert unreachable_by_one_step(FOUR, VoterSet(1, THREE)) is None
    assert "one voter at a time" in (
        unreachable_by_one_step(voters(1, 4), VoterSet(1, THREE)) or ""
    )


# -- under cuts


class FollowsItsFile(RaftNode):
    """The voters are those of the peers file, whatever the log holds."""

    def _on_voters(self) -> None:
        epoch = self._journal.voter_set.epoch if self._journal.voter_set else 0
        self._members.current = VoterSet(epoch, self._members.configured)


class SkipsTheAgreement(World):
    """Nodes with any files connect."""

    talk_always = True


def test_voters_change_one_at_a_time_under_cuts() -> None:
    sets = 0
    for seed in range(3):
        sets += len(World(seed, nodes=3, observers=2, seconds=15.0, changes=True).run().sets) - 2
    assert sets > 5


def test_the_log_alone_is_safe_without_the_refusals() -> None:
    SkipsTheAgreement(1, nodes=3, observers=2, seconds=15.0, changes=True, fault_every=0.5).run()


def test_the_simulation_detects_nodes_that_follow_their_files() -> None:
    broken = 0
    for seed in range(4):
        try:
            SkipsTheAgreement(
                seed, nodes=3, observers=2, seconds=15.0, changes=True, node_class=FollowsItsFile
            ).run()
        except (Violation, AssertionError):
            broken += 1
    assert broken

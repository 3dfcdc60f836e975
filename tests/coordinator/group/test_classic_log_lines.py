"""A rebalance of a classic group as an operator sees it: the coordinator's log, and the fields that
mqd adds to DescribeGroups.
"""

from __future__ import annotations

import pytest

from mqd.protocol import apis
from tests.coordinator.group.classic_support import Groups


@pytest.fixture
def groups() -> Groups:
    return Groups()


def test_log_lines_name_joining_leaving_and_missing_members(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    """During a long rebalance, the log names first the members that have not rejoined, then the
    leader that has not sent assignments.
    """
    caplog.set_level("INFO", "mqd.coordinator.group")

    def log_messages() -> str:
        found = "\n".join(record.getMessage() for record in caplog.records)
        caplog.clear()
        return found

    one, two = groups.form(None, None, session_ms=60_000, rebalance_ms=20_000)
    assert (
        f"reason=a new member joins, {one} at /10.0.0.1" in (first := log_messages())
        and f"new={one} at /10.0.0.1, {two} at /10.0.0.1" in first
    )
    groups.join(one, session_ms=60_000, rebalance_ms=20_000)
    groups.join(version=4)
    assert f"reason=its leader joins again, {one}" in log_messages()
    groups.advance(4.9)
    assert log_messages() == ""
    groups.advance(0.1)
    assert (
        f"generation=1 state=PreparingRebalance awaited={two} at /10.0.0.1 not_yet_joined=1"
        in log_messages()
    )
    groups.advance(15)
    assert (
        f"members did not rejoin in time group=orders generation=1 members={two} at /10.0.0.1\n"
        in log_messages()
    )
    groups.advance(5)
    assert f"generation=2 state=CompletingRebalance awaited={one} at /10.0.0.1 " in log_messages()
    groups.advance(15)
    assert f"members sent no SyncGroup in time, {one}" in log_messages()


def test_log_lines_name_members_that_leave(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mqd.coordinator.group")
    groups.form("a", None)
    groups.leave("", instance_id="a")
    assert "reason=members leave, a" in caplog.text
    many = [groups.join(group_id="many") for _ in range(7)]
    groups.advance(6)
    assert "and 2 more" in caplog.text and len(many) == 7


def test_a_completed_rebalance_is_not_reported_as_waiting(
    groups: Groups, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mqd.coordinator.group")
    one, two = groups.form(None, None, session_ms=60_000)
    groups.join(one, session_ms=60_000)
    groups.join(two, session_ms=60_000)
    groups.synchronize([one, two], 2)
    groups.join(version=4)
    groups.advance(6)
    assert "waits" not in caplog.text


def test_a_rebalancing_group_reports_its_start_and_the_awaited_members(groups: Groups) -> None:
    """These are tagged fields of mqd, which older versions do not have; the handler returns them
    only to clients that request them.
    """

    def awaited() -> list[str]:
        return [each["member_id"] for each in groups.describe()["members"] if each.get("awaited")]

    one, two = groups.form(None, None)
    began = groups.now.wall_ms
    groups.join(two, protocols=[("range", b"more")])
    groups.advance(2)
    assert awaited() == [one] and groups.describe()["state_since_ms"] == began
    groups.join(one)
    assert awaited() == [one], "it is the leader, and has not sent assignments"
    groups.sync(two, 2)
    groups.sync_now(one, 2, {})
    assert awaited() == [] and "state_since_ms" not in groups.describe()
    declared = apis.by_name("DescribeGroups")
    row = {"group_id": "g", "members": [{"member_id": "m", "awaited": True}], "state_since_ms": 5}
    for version, result in ((4, False), (5, True)):
        decoded = declared.decode_response(
            version, memoryview(declared.encode_response(version, {"groups": [row]})), 0
        ).groups[0]
        assert (decoded.members[0].awaited, decoded.state_since_ms) == (result, 5 if result else -1)

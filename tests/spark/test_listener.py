"""The listener: what is committed where, and the lag, out of Spark's progress reports."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from mqd.types import TopicPartition
from pyspark_mqd import listener
from pyspark_mqd.connection import Connection
from pyspark_mqd.errors import OptionError
from pyspark_mqd.listener import Lag, MqdListener, commits_of, lag_between, lags_of
from pyspark_mqd.offsets import CommitTarget, Offsets, StreamOffset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def progress(*sources: tuple[str | None, str | None], query: str = "q") -> Any:
    rows = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
    return SimpleNamespace(id=query, name=None, sources=rows)


def event(*sources: tuple[str | None, str | None], query: str = "q") -> Any:
    return SimpleNamespace(progress=progress(*sources, query=query))


def written(ends: Offsets, group: str | None = None) -> str:
    target = None if group is None else CommitTarget(group, "h:1")
    return json.dumps(StreamOffset(ends, {}, target).to_json())


def test_lag_is_sparks() -> None:
    lag = lag_between({T0: 5, T1: 10}, {T0: 8, T1: 10})
    assert lag == Lag(0, 3, 1.5)
    assert lag.metrics() == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "3",
        "avgOffsetsBehindLatest": "1.5",
    }
    assert lag_between({}, {}) is None


def test_lag_of_each_source() -> None:
    other = ('{"logOffset": 3}', None)
    found = lags_of(progress((written({T0: 5}), written({T0: 9})), other, (None, None)))
    assert found == [Lag(4, 4, 4.0), None, None]


def test_commits_go_to_the_group_in_the_offset() -> None:
    both = progress((written({T0: 5}, "g"), None), (written({T1: 6}), None))
    assert commits_of(both) == [(CommitTarget("g", "h:1"), {T0: 5})]
    default = CommitTarget("d", "h:2")
    assert commits_of(both, default)[1] == (default, {T1: 6})


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []

    def commit(connection: Connection, group_id: str, offsets: Offsets) -> str | None:
        made.append((connection.bootstrap, group_id, dict(offsets)))
        return "no coordinator" if group_id == "bad" else None

    monkeypatch.setattr(listener, "commit_offsets", commit)
    return made


def test_every_micro_batch_is_committed(commits: list[Any]) -> None:
    seen: list[Any] = []
    following = MqdListener(on_lag=lambda query, lags: seen.append((query, lags)))
    following.onQueryProgress(event((written({T0: 5}, "g"), written({T0: 6}))))
    following.onQueryProgress(event((written({T0: 6}, "g"), written({T0: 6}))))
    assert commits == [("h:1", "g", {T0: 5}), ("h:1", "g", {T0: 6})]
    assert following.lags["q"] == [Lag(0, 0, 0.0)]
    assert seen[0] == ("q", [Lag(1, 1, 1.0)])


def test_a_failure_is_stored_and_stops_nothing(
    commits: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    following = MqdListener()
    for place in (5, 6):
        following.onQueryProgress(event((written({T0: place}, "bad"), None)))
    assert following.failures == {"bad": "no coordinator"} and len(commits) == 2
    assert caplog.text.count("not committed to group 'bad': no coordinator") == 1


def test_settings_for_offsets_without_a_group(commits: list[Any]) -> None:
    options = {"kafka.bootstrap.servers": "h:9", "Group.Id": "mine"}
    MqdListener(options).onQueryProgress(event((written({T0: 5}), None)))
    assert commits == [("h:9", "mine", {T0: 5})]
    with pytest.raises(OptionError, match=r"needs option 'kafka.group.id'"):
        MqdListener({"kafka.bootstrap.servers": "h:9"})


def test_the_lags_of_old_queries_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "QUERIES_MAX", 2)
    following = MqdListener()
    for query in ("a", "b", "c"):
        following.onQueryProgress(event((written({T0: 5}), written({T0: 6})), query=query))
    assert list(following.lags) == ["b", "c"]


def test_an_error_in_the_listener_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    MqdListener().onQueryProgress(SimpleNamespace(progress=None))  # type: ignore[arg-type]  # a fake event
    assert "The listener of format 'mqd' failed" in caplog.text

"""Expressions that match topics, and the hash that shows when a topic has changed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from mqd.coordinator.group.subscriptions import Resolution, compile_expression, topics_hash
from mqd.errors import ErrorCode, MqError
from tests.coordinator.group.support import Topics


def test_an_expression_matches_whole_names() -> None:
    topics = Topics({"red": 1, "red-1": 1, "infrared": 1, "__red": 1})
    resolution = Resolution(["red", "red.*", ".*red", "(?i)RED-\\d"], topics)
    assert resolution.advance()
    assert resolution.matched == {
        "(?i)RED-\\d": ["red-1"],
        ".*red": ["__red", "infrared", "red"],
        "red": ["red"],
        "red.*": ["red", "red-1"],
    }


def test_a_search_resumes_with_the_topics_of_its_start() -> None:
    topics = Topics({f"t{number}": 1 for number in range(3)})
    resolution = Resolution(["t.*", "x"], topics)
    topics.create("t9", 1)
    slices = 1
    while not resolution.advance(1):
        slices += 1
    assert slices == 6, "at least one name each time"
    assert resolution.matched == {"t.*": ["t0", "t1", "t2"], "x": []}
    assert resolution.version == 3


def test_many_expressions_are_compiled_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def note(text: str) -> Any:
        compiled.append(text)
        return compile_expression(text)

    monkeypatch.setattr("mqd.coordinator.group.subscriptions.compile_expression", note)
    resolution = Resolution([f"t{number}" for number in range(200)], Topics({"t7": 1}))
    seen = [0]
    while not resolution.advance():
        seen.append(len(compiled))
    assert len(compiled) == 200
    assert max(after - before for before, after in pairwise(seen)) <= 50
    assert [text for text, names in resolution.matched.items() if names] == ["t7"]


def test_an_expression_that_is_too_large_matches_no_topic() -> None:
    """An earlier release may have stored it."""
    resolution = Resolution(["a" * 5000, "t.*", "(", "x"], Topics({"t1": 1, "t2": 1}))
    assert resolution.advance()
    assert resolution.matched == {"a" * 5000: [], "t.*": ["t1", "t2"], "(": [], "x": []}


def test_a_search_without_topics_ends_at_once() -> None:
    assert Resolution(["t.*"], Topics()).done


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [("(", "missing )"), ("(?!x)", "invalid perl operator"), ("(a{900}){900}", "repetition size")],
)
def test_expressions_that_re2_refuses_are_refused_with_the_cause(wrong: str, cause: str) -> None:
    with pytest.raises(MqError) as refused:
        compile_expression(wrong)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.value.message.startswith(
        f"SubscribedTopicRegex `{wrong}` is not a valid regular expression: "
    )
    assert cause in refused.value.message


def test_a_long_expression_is_quoted_in_part() -> None:
    with pytest.raises(MqError) as refused:
        compile_expression("a" * 30_000)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert "it has 30,000 characters; at most 1,000 are allowed" in refused.value.message
    assert len(refused.value.message) < 1200


def test_expressions_with_exponential_backtracking_match_in_linear_time() -> None:
    pattern = compile_expression("(a+)+" * 20 + "b")
    assert pattern.fullmatch("a" * 249) is None


def test_the_hash_changes_only_with_inputs_of_assignments() -> None:
    topics = Topics({"a": 2, "b": 1})

    def of(*names: str) -> int:
        return topics_hash(topics, names)

    first = of("a")
    assert first != 0 and of("a", "missing") == first and of() == of("missing") == 0
    topics.create("unrelated", 1)
    assert of("a") == first
    assert of("a", "b") == of("b", "a") != first
    topics._racks["a", 1] = frozenset({"x", "y"})
    racks = of("a")
    assert racks != first
    topics.create("a", 2)
    topics._racks.clear()
    assert of("a") not in (first, racks), "another topic of the same name"


def test_the_hash_is_the_same_on_every_node_and_in_every_release() -> None:
    topics = Topics({"a": 3, "b": 1})
    topics._racks["a", 1] = frozenset({"y", "x"})
    assert (
        topics_hash(topics, {"a", "b"}) == topics_hash(topics, ["b", "a"]) == -7250764636247045434
    )

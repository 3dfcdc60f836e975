"""The expression of ListTransactions: the ids that it matches, and the work of one slice."""

from __future__ import annotations

from typing import Any

import pytest

from mqd.coordinator.txn.operations import compiled_pattern
from mqd.errors import ErrorCode, MqError
from mqd.server.handlers import list_transactions
from mqd.server.slices import SLICE_ROWS


@pytest.fixture(autouse=True)
def _no_authorizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_transactions, "permissions_of", lambda _: None)
    monkeypatch.setattr(list_transactions, "is_authorized", lambda *_, **__: True)


def found(pattern: str, names: list[str]) -> tuple[list[str], list[int]]:
    """The ids that are listed, and the rows of each step."""
    context: Any = None
    rows = [{"transactional_id": name} for name in names]
    work = list_transactions._describable(context, compiled_pattern(pattern), iter(rows))
    steps = []
    while True:
        try:
            steps.append(next(work))
        except StopIteration as end:
            return [row["transactional_id"] for row in end.value], steps


def test_an_expression_matches_whole_ids() -> None:
    names = ["orders-1", "orders-2", "pay"]
    assert found("", names)[0] == names
    assert found("orders-.*", names)[0] == ["orders-1", "orders-2"]
    assert found("orders", names)[0] == []


@pytest.mark.parametrize("wrong", ["(", "(x{100}){100}", "a" * 1001])
def test_expressions_that_are_wrong_or_too_large_are_refused(wrong: str) -> None:
    with pytest.raises(MqError) as refusal:
        compiled_pattern(wrong)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_match_of_a_long_id_is_a_slice() -> None:
    names = ["a" * 4000] * 3
    _, steps = found(".*a.{300}b", names)
    assert len(steps) == len(names) and min(steps) >= SLICE_ROWS
    _, steps = found("orders-.*", ["orders-7"] * 300)
    assert sum(steps) <= 300 + SLICE_ROWS

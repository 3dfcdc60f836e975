"""The check of a copy by a streaming query."""

from __future__ import annotations

import pytest

from chaos.spark_copy_checker import check_rows

SOURCE = {0: [b"a", b"b", b"c"], 1: [b"d"]}
COPY = {0: [b"0-0:a", b"1-0:d", b"0-2:c"], 1: [b"0-1:b"]}


def test_a_whole_copy_has_no_violation() -> None:
    assert check_rows(SOURCE, COPY) == []


@pytest.mark.parametrize(
    ("copy", "kind", "example"),
    [
        ({0: COPY[0]}, "lost", "0-1"),
        ({**COPY, 2: [b"1-0:d"]}, "doubled", "1-0"),
        ({**COPY, 2: [b"7-0:x"]}, "invented", "7-0"),
        ({**COPY, 2: [b"nothing"]}, "invented", "nothing"),
        ({**COPY, 1: [b"0-1:x"]}, "changed", "0-1"),
        ({0: [b"0-2:c", b"0-0:a", b"1-0:d"], 1: COPY[1]}, "disorder", "0-0"),
    ],
)
def test_each_violation_is_found(copy: dict[int, list[bytes]], kind: str, example: str) -> None:
    (found,) = check_rows(SOURCE, copy)

    assert (found.kind, found.count, found.examples) == (kind, 1, (example,))
    assert kind in str(found)

"""What an error of a rolling restart says about misplaced records."""

from __future__ import annotations

import pytest

from chaos.received import Received, misplaced


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (
            [(0, 0), (1, 3), (1, 3), (2, 6)],
            [[], [3], [], [], []],
        ),
        (
            [(0, 0), (1, 3), (2, 3), (3, 6)],
            [[3], [], [], [], []],
        ),
        ([(0, 0), (1, 6)], [[], [], [3], [], []]),
        ([(0, 0), (1, 3), (2, 4), (3, 6)], [[], [], [], [4], []]),
        ([(0, 0), (2, 6), (1, 3)], [[], [], [], [], [3]]),
    ],
)
def test_each_kind_is_named(received: list[tuple[int, int]], expected: list[list[int]]) -> None:
    twice, read, missing, unknown, late = expected
    assert misplaced([Received(*each) for each in received], [0, 3, 6]) == (
        f"appended twice {twice}, read twice {read}, missing {missing}, unknown {unknown}, "
        f"late {late}"
    )

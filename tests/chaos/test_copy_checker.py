"""chaos/copy_checker.py: a true copy passes, and every violation is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.copy_checker import MEANINGS, Copy, check_copy
from chaos.history import Reads, value_of

KEY, OTHER = ("copy", 0), ("copy", 1)
COUNT = 10


def records(count: int = COUNT) -> Reads:
    reads = Reads()
    for offset in range(count):
        reads.add(offset, 1000 + offset)
    return reads


class Run:
    """Two source partitions, each copied to one partition; between the transactions is a marker."""

    def __init__(self) -> None:
        self.source = {0: records(), 1: records()}
        self.rows = {
            key: [
                (offset + offset // 3, partition, offset, 1000 + offset) for offset in range(COUNT)
            ]
            for partition, key in PLACES
        }
        self.along = {key: list(rows) for key, rows in self.rows.items()}

    def kinds(self) -> set[str]:
        copies, along = {key: Copy() for key in self.rows}, {key: Reads() for key in self.along}
        for key, rows in self.rows.items():
            for offset, partition, source, found in rows:
                copies[key].add_copy(offset, value_of(partition, source), found)
        for key, rows in self.along.items():
            for offset, partition, source, _ in rows:
                along[key].add(offset, value_of(partition, source))
        return {one.kind for one in check_copy("copy", self.source, copies, along)}


PLACES = ((0, KEY), (1, OTHER))


def test_a_true_copy_passes_and_a_reader_may_stop_early() -> None:
    run = Run()
    assert run.kinds() == set()
    run.along[KEY] = run.along[KEY][:4]
    assert run.kinds() == set()


def lose_at_the_end(run: Run) -> None:
    run.rows[KEY].pop()
    run.along[KEY].pop()


def copy_twice(run: Run) -> None:
    run.rows[KEY].append((100, 0, 3, 1003))


def copy_twice_elsewhere(run: Run) -> None:
    run.rows[OTHER].append((100, 0, 3, 1003))


def invent(run: Run) -> None:
    run.rows[KEY].append((100, 0, COUNT, 1000))


def invent_a_partition(run: Run) -> None:
    run.rows[KEY].append((100, 7, 0, 1000))


def change(run: Run) -> None:
    run.rows[KEY][4] = (*run.rows[KEY][4][:3], 0)


def disorder(run: Run) -> None:
    rows = run.rows[KEY]
    rows[1], rows[2] = (rows[1][0], *rows[2][1:]), (rows[2][0], *rows[1][1:])
    run.along[KEY] = list(rows)


def take_back(run: Run) -> None:
    run.along[KEY].append((100, 0, 3, 1003))


def read_twice(run: Run) -> None:
    run.along[KEY].append(run.along[KEY][2])


def skip(run: Run) -> None:
    del run.along[KEY][2]


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lose_at_the_end, {"missing"}),
        (copy_twice, {"doubled"}),
        (copy_twice_elsewhere, {"doubled"}),
        (invent, {"invented"}),
        (invent_a_partition, {"invented"}),
        (change, {"changed"}),
        (disorder, {"disorder"}),
        (take_back, {"taken-back"}),
        (read_twice, {"read-twice"}),
        (skip, {"unseen"}),
    ],
)
def test_records_that_are_not_copies_are_reported(
    spoil: Callable[[Run], None], kinds: set[str]
) -> None:
    run = Run()
    spoil(run)
    assert run.kinds() == kinds
    assert kinds <= set(MEANINGS)

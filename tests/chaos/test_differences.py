"""What an error of a rolling restart says about misplaced records."""

from __future__ import annotations

from chaos.differences import differences


def test_differences_name_the_records() -> None:
    wanted = [0, 3, 6, 9, 12]
    assert differences([0, 3, 3, 9, 6, 12], wanted) == "twice [3], missing [], late [6]"
    assert differences([0, 6, 9], wanted) == "twice [], missing [3, 12], late []"

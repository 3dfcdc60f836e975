"""How much memory a process may use."""

from __future__ import annotations

from pathlib import Path

from mqd.io.memory import memory_bytes


def test_the_least_of_the_machine_and_its_control_groups(tmp_path: Path) -> None:
    machine = memory_bytes(())
    assert machine > 1 << 28
    two, one, none = (
        tmp_path / "memory.max",
        tmp_path / "memory.limit_in_bytes",
        tmp_path / "missing",
    )
    two.write_text("max\n")
    one.write_text(f"{2**63 - 4096}\n")
    assert memory_bytes((two, one, none)) == machine
    two.write_text("134217728\n")
    assert memory_bytes((two, one, none)) == 134217728
    assert 0 < memory_bytes() <= machine

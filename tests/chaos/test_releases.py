"""The source of the previous release, where the clone has it."""

from __future__ import annotations

from pathlib import Path

from chaos.releases import BEFORE, unpack


def test_a_clone_without_the_commit_names_the_remedy(tmp_path: Path) -> None:
    why = unpack("0" * 40, tmp_path / "old")
    assert why is not None and "git fetch --unshallow" in why
    assert not (tmp_path / "old").exists()


def test_the_previous_release_has_metadata_version_2(tmp_path: Path) -> None:
    if unpack(BEFORE, tmp_path / "old") is None:
        assert "NEWEST = 2" in (tmp_path / "old/mqd/raft/versions.py").read_text()

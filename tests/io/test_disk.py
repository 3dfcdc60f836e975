from __future__ import annotations

import errno
import os
import resource
import threading
from pathlib import Path

import pytest

from mqd.io.disk import OsDisk, raise_descriptor_limit


def test_append_read_truncate(tmp_path: Path) -> None:
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.open(tmp_path / "f")
    file = disk.open(tmp_path / "f", create=True)
    assert file.append([b"abc", bytearray(b"de"), memoryview(b"f")]) == 6 == file.size()
    assert file.append([]) == 0
    assert (file.read_at(0, 100), file.read_at(2, 2), file.read_at(6, 5)) == (b"abcdef", b"cd", b"")
    file.write_at(1, b"XY")
    file.truncate(4)
    assert file.append([b"!"]) == 1
    file.sync()
    assert disk.read_bytes(tmp_path / "f") == b"aXYd!" and os.fstat(file.fileno()).st_size == 5
    file.close()
    file.close()
    assert disk.open(tmp_path / "f").size() == 5


def test_more_views_than_one_call_takes(tmp_path: Path) -> None:
    views = [b"%d," % number for number in range(3000)]
    file = OsDisk().open(tmp_path / "f", create=True)
    assert file.append(views) == sum(map(len, views))
    assert file.read_at(0, 1 << 20) == b"".join(views)


def test_short_writes_are_completed_or_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    file = OsDisk().open(tmp_path / "f", create=True)
    monkeypatch.setattr(
        os, "pwritev", lambda fd, views, position: real(fd, b"".join(views)[:3], position)
    )
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, position: real(fd, bytes(data[:2]), position)
    )
    assert (
        file.append([b"abc", b"defg", b"h"]) == 8
        and file.read_at(0, 100) == b"abcdefgh"
        and file.size() == 8
    )

    def full(fd: int, data: memoryview, position: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="full"):
        file.append([b"ijkl"])
    assert file.size() == 11, "the written part is counted, so that it can be truncated"
    file.truncate(8)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    with pytest.raises(OSError, match="no progress"):
        file.append([b"ijkl"])


@pytest.mark.parametrize(
    ("group", "file_mode", "directory_mode"), [(False, 0o600, 0o700), (True, 0o640, 0o750)]
)
def test_other_users_read_nothing_and_the_group_only_if_allowed(
    tmp_path: Path, group: bool, file_mode: int, directory_mode: int
) -> None:
    disk, before = OsDisk(group_readable=group), os.umask(0)
    try:
        disk.make_directory(tmp_path / "a" / "b")
        disk.open(tmp_path / "a" / "file", create=True)
        disk.write_atomic(tmp_path / "a" / "whole", b"1")
        disk.lock(tmp_path / "a" / "lock")
    finally:
        os.umask(before)
    assert {
        name: os.stat(tmp_path / "a" / name).st_mode & 0o777 for name in disk.list(tmp_path / "a")
    } == {
        "b": directory_mode,
        "file": file_mode,
        "whole": file_mode,
        "lock": file_mode,
    }
    assert os.stat(tmp_path / "a").st_mode & 0o777 == directory_mode


def test_a_directory_that_others_can_enter_keeps_its_mode_and_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o755)
    OsDisk().make_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o755
    assert f"remedy=chmod 700 {directory}" in caplog.text
    caplog.clear()
    directory.chmod(0o750)
    OsDisk(group_readable=True).make_directory(directory)
    assert not caplog.text


def test_a_file_stays_open_while_it_has_a_reference(tmp_path: Path) -> None:
    disk = OsDisk()
    file = disk.open(tmp_path / "f", create=True)
    file.append([b"still here"])
    disk.remove(tmp_path / "f")
    disk.remove(tmp_path / "f")
    assert file.read_at(0, 100) == b"still here"


def test_directories(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.make_directory(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "b")
    disk.make_directory(tmp_path / "a" / "c", durable=False)
    assert disk.list(tmp_path / "a") == ["b", "c"]
    disk.write_atomic(tmp_path / "a" / "x", b"1")
    disk.write_atomic(tmp_path / "a" / "x", b"2")
    assert disk.read_bytes(tmp_path / "a" / "x") == b"2"
    disk.rename(tmp_path / "a" / "x", tmp_path / "a" / "y", durable=False)
    disk.rename(tmp_path / "a", tmp_path / "z")
    assert disk.list(tmp_path / "z") == ["b", "c", "y"] and not disk.exists(tmp_path / "a")
    disk.remove_tree(tmp_path / "z")
    disk.remove_tree(tmp_path / "z")
    assert not disk.exists(tmp_path / "z")
    assert 0 < disk.free_bytes(tmp_path) <= disk.total_bytes(tmp_path)


def test_a_failed_atomic_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk()
    disk.write_atomic(tmp_path / "f", b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="full"):
        disk.write_atomic(tmp_path / "f", b"new")
    assert disk.read_bytes(tmp_path / "f") == b"old" and disk.list(tmp_path) == ["f"]


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    disk = OsDisk()
    lock = disk.lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        disk.lock(tmp_path / "lock")
    lock.close()
    disk.lock(tmp_path / "lock").close()


def test_the_limit_of_open_files_is_raised_as_far_as_it_goes() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], 256), before[1]))
        limit = raise_descriptor_limit()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert soft == hard == before[1] and limit in (hard, 1 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_boot_id_is_that_of_this_run_of_the_machine() -> None:
    assert OsDisk().boot_id() == OsDisk().boot_id()


async def test_blocking_calls_run_in_another_thread() -> None:
    here = threading.get_ident()
    assert await OsDisk().offload(lambda offset: (threading.get_ident() != here, offset), 7) == (
        True,
        7,
    )

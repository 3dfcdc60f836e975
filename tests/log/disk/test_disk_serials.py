"""The disk serials in the data directory: the file, and what a start concludes from it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.io.disk import OsDisk
from mqd.log.disk.disk_serials import (
    decode_disk_serials,
    encode_disk_serials,
    load_disk_serials,
    older_copies,
    store_disk_serials,
)
from mqd.protocol.files import FileFormatError
from tests.log.support import Harness, batch

ONE, TWO, NEW = (UUID(int=number) for number in (1, 2, 3))


@given(st.dictionaries(st.uuids(), st.integers(0, 2**63 - 1), max_size=4))
def test_round_trip(serials: dict[UUID, int]) -> None:
    assert decode_disk_serials(encode_disk_serials(serials)) == serials


@given(st.binary(max_size=80), st.data())
def test_other_bytes_are_refused(data: bytes, draw: st.DataObject) -> None:
    written = encode_disk_serials({ONE: 17})
    cut = written[: draw.draw(st.integers(0, len(written) - 1))]
    for bad in (data, cut[:-1] if cut.endswith(b"\n") else cut, written + b"x\n"):
        with pytest.raises(FileFormatError):
            decode_disk_serials(bad)


def test_a_missing_or_damaged_file_proves_nothing(tmp_path: Path) -> None:
    disk, file = OsDisk(), tmp_path / "disk-serials"
    assert load_disk_serials(disk, file) == {}
    store_disk_serials(disk, file, {ONE: 17})
    assert load_disk_serials(disk, file) == {ONE: 17}
    file.write_bytes(b"version 0\n\xff 17\n")
    assert load_disk_serials(disk, file) == {}


def test_only_a_known_directory_with_a_lower_serial_is_an_older_copy() -> None:
    recorded = {ONE: 17, TWO: 17}
    assert older_copies(recorded, {ONE: 16, TWO: 17}) == {ONE: 17}
    assert older_copies(recorded, {ONE: 17, TWO: 18}) == {}
    assert older_copies(recorded, {ONE: 17, NEW: 0}) == {}, "TWO was replaced by an empty directory"
    assert older_copies({}, {ONE: 3}) == {}, (
        "an earlier release without support for the file ran before"
    )


async def test_the_serial_of_an_older_copy_is_not_hidden_by_the_first_checkpoint(
    tmp_path: Path,
) -> None:
    """A start keeps what it found when the checkpoints are written again."""
    harness = Harness(tmp_path)
    await harness.service.start()
    harness.write(harness.open(), batch())
    await harness.service.checkpoint_recovery_points()
    harness.kill()
    harness.new_service(survival_proven=True)
    await harness.service.start()
    log = harness.open()
    harness.write(log, batch())
    await harness.service.checkpoint_recovery_points()
    directory = next(iter(harness.service.directories.values()))
    assert (directory.found_serial, directory.serial) == (1, 2)

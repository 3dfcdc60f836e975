from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from mqd.errors import StorageError
from mqd.io.disk import OsDisk
from mqd.log.disk.last_registration import (
    NO_BROKER_EPOCH,
    LastRegistration,
    decode_last_registration,
    encode_last_registration,
    forget_last_registration,
    machine_ran_on,
    previous_broker_epoch,
    store_last_registration,
)


class Machine(OsDisk):
    """A disk on a machine that a test can restart."""

    boot = "first"

    def boot_id(self) -> str:
        return self.boot


@given(
    st.integers(0, 2**63 - 1),
    st.text("0123456789abcdef-", max_size=40),
    st.frozensets(st.uuids(), max_size=3),
)
def test_round_trip(epoch: int, boot_id: str, directories: frozenset[UUID]) -> None:
    last = LastRegistration(epoch, boot_id, directories)
    assert decode_last_registration(encode_last_registration(last)) == last


@pytest.mark.parametrize(
    "epoch", ["99999999999999999999999", str(2**63), "-2", "1_0", " 7", "", "\u0663"]
)
def test_an_impossible_epoch_is_refused_with_the_remedy(tmp_path: Path, epoch: str) -> None:
    path, disk = tmp_path / "registration", OsDisk()
    path.write_text(f"version 1\nbroker_epoch {epoch}\nboot_id b\ndirectories \n", encoding="utf-8")
    with pytest.raises(
        StorageError, match="is not a broker epoch; remove it: this node then copies"
    ):
        previous_broker_epoch(disk, path, clean=True, directories=())


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        decode_last_registration(data)
    except ValueError:
        pass


def test_logs_are_trusted_after_a_kill_and_not_after_a_machine_restart(
    tmp_path: Path,
) -> None:
    disk, path = Machine(), tmp_path / "registration"
    assert previous_broker_epoch(disk, path, clean=True, directories=()) == NO_BROKER_EPOCH
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == 17
    disk.boot = "second"
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == NO_BROKER_EPOCH


def test_a_clean_stop_does_not_hide_the_losses_of_an_earlier_process(tmp_path: Path) -> None:
    """Power failure; a start that finds no controller, does not register, and is stopped cleanly;
    another start (seed 556 of 3 nodes).
    """
    disk, path = Machine(), tmp_path / "registration"
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    disk.boot = "second"
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == NO_BROKER_EPOCH
    assert previous_broker_epoch(disk, path, clean=True, directories=()) == NO_BROKER_EPOCH
    assert not machine_ran_on(disk, path)


def test_an_early_kill_keeps_the_clean_stop_before_a_machine_restart(
    tmp_path: Path,
) -> None:
    disk, path = Machine(), tmp_path / "registration"
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    disk.boot = "second"
    assert previous_broker_epoch(disk, path, clean=True, directories=()) == 17
    # killed before it was registered
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == 17
    disk.boot = "third"
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == NO_BROKER_EPOCH


def test_a_machine_without_a_boot_id_proves_nothing(tmp_path: Path) -> None:
    disk, path = Machine(), tmp_path / "registration"
    disk.boot = ""
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == NO_BROKER_EPOCH


def test_a_missing_log_directory_ends_the_trust(tmp_path: Path) -> None:
    disk, path = Machine(), tmp_path / "registration"
    lost, kept, new = UUID(int=1), UUID(int=2), UUID(int=3)
    store_last_registration(
        disk, path, LastRegistration(17, disk.boot_id(), frozenset({lost, kept}))
    )
    # a start that failed leaves a clean marker in a directory that it created
    for clean in (False, True):
        assert (
            previous_broker_epoch(disk, path, clean=clean, directories={kept, new})
            == NO_BROKER_EPOCH
        )
        assert previous_broker_epoch(disk, path, clean=clean, directories={lost, kept, new}) == 17


def test_after_a_failed_sync_no_log_is_trusted(tmp_path: Path) -> None:
    disk, path = Machine(), tmp_path / "registration"
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    forget_last_registration(disk, path)
    assert previous_broker_epoch(disk, path, clean=False, directories=()) == NO_BROKER_EPOCH


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "registration").write_bytes(b"version 1\nbroker")
    with pytest.raises(StorageError, match="registration"):
        previous_broker_epoch(Machine(), tmp_path / "registration", clean=False, directories=())


def test_a_restart_of_the_machine_is_detected(tmp_path: Path) -> None:
    disk, path = Machine(), tmp_path / "registration"
    assert machine_ran_on(disk, path)
    store_last_registration(disk, path, LastRegistration(17, disk.boot_id()))
    assert machine_ran_on(disk, path)
    disk.boot = "second"
    assert not machine_ran_on(disk, path)

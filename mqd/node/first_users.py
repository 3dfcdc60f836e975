"""The first users of a new cluster: a file that `mqd storage add-user` writes into the data
directory of a node that has never started.

The node's first registration has them, and the controller adds them in the same command, if the
cluster has no SCRAM credential yet. Then the node removes the file. The file has the keys that
verify a password, and no password.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mqd.config import StartError
from mqd.controller.image import MetadataImage
from mqd.controller.records import SetScramCredential
from mqd.io.disk import Disk
from mqd.log.disk import last_registration
from mqd.raft.journal_start import journal_exists
from mqd.security.scram import BY_NAME, NAMES, new_credential
from mqd.security.scram_credentials import ScramCredential, ScramMechanism

logger = logging.getLogger(__name__)

NAME: Final = "first-users"
USERS_MAX: Final = 100
"""They fit into one command."""
_VERSION: Final = 1

FirstUsers = dict[tuple[str, ScramMechanism], ScramCredential]


def load_first_users(disk: Disk, path: Path) -> FirstUsers:
    """Empty if there is no file. Raises StartError for a damaged one."""
    try:
        data = disk.read_bytes(path)
    except FileNotFoundError:
        return {}
    try:
        found = json.loads(data)
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']!r}")
        return {
            (row["user"], BY_NAME[row["mechanism"]]): ScramCredential(
                row["iterations"], *(b64decode(row[name]) for name in _SECRETS)
            )
            for row in found["users"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise StartError(
            f"{path} is damaged ({type(error).__name__}): remove it, and run `mqd storage "
            "add-user` again"
        ) from None


_SECRETS: Final = ("salt", "stored_key", "server_key")


def store_first_users(disk: Disk, path: Path, users: FirstUsers) -> None:
    """Write the file, which only its owner can read; durable on return."""
    rows = [
        {
            "user": user,
            "mechanism": NAMES[mechanism],
            "iterations": credential.iterations,
            **{name: b64encode(getattr(credential, name)).decode() for name in _SECRETS},
        }
        for (user, mechanism), credential in sorted(users.items(), key=lambda each: each[0])
    ]
    disk.write_atomic(
        path, json.dumps({"version": _VERSION, "users": rows}, indent=2).encode() + b"\n"
    )


def add_first_user(
    disk: Disk,
    data_directory: Path,
    user: str,
    password: str,
    *,
    mechanism: ScramMechanism,
    iterations: int,
    salt: bytes,
) -> None:
    """Add a user to the file of a data directory, or replace it there.

    Raises StartError if the node has started before: its cluster exists then.
    """
    disk.make_directory(data_directory)
    try:
        lock = disk.lock(data_directory / ".lock")
    except BlockingIOError:
        raise StartError(
            f"{data_directory}: a node runs in this data directory. {_with_mqctl(user)}"
        ) from None
    try:
        if journal_exists(disk, data_directory / "metadata") or disk.exists(
            data_directory / last_registration.NAME
        ):
            raise StartError(
                f"'{data_directory}' belongs to a cluster that already exists. {_with_mqctl(user)}"
            )
        path = data_directory / NAME
        users = load_first_users(disk, path)
        users[user, mechanism] = new_credential(mechanism, password, salt, iterations)
        if len(users) > USERS_MAX:
            raise StartError(
                f"{path} has {USERS_MAX} users, which is the maximum. {_with_mqctl(user)}"
            )
        store_first_users(disk, path, users)
    finally:
        lock.close()


def _with_mqctl(user: str) -> str:
    return f"Create the user in the running cluster: mqctl user create {user}"


def records_of(
    users: Mapping[tuple[str, ScramMechanism], ScramCredential],
) -> tuple[SetScramCredential, ...]:
    """What a registration carries."""
    return tuple(
        SetScramCredential(user, mechanism, credential)
        for (user, mechanism), credential in users.items()
    )


def on_registered(disk: Disk, path: Path, users: FirstUsers, image: MetadataImage) -> None:
    """Report which users the cluster has now, and remove the file. `image` includes the
    registration.
    """
    known = image.scram_credentials
    added = [key for key, credential in users.items() if known.get(key) == credential]
    refused = [key for key in users if key not in added]
    if added:
        logger.info("first users added users=%s", _shown(added))
    if refused:
        logger.warning(
            "first users not added, because the cluster has users already or runs an earlier "
            "metadata version users=%s remedy='create them with mqctl user create'",
            _shown(refused),
        )
    try:
        disk.remove(path)
    except OSError as error:
        logger.warning("cannot remove file=%s reason=%s", path, error)


def _shown(keys: list[tuple[str, ScramMechanism]]) -> str:
    return ",".join(f"{user}:{NAMES[mechanism]}" for user, mechanism in keys)

"""The secret behind the salts of SCRAM users that do not exist (security/scram.py).

A cluster with a cluster secret uses that one, so that all nodes answer alike. Without it, a node
keeps a secret of its own in the data directory: the answers stay the same after a restart.
"""

from __future__ import annotations

from pathlib import Path

from mqd.io.disk import Disk
from mqd.io.entropy import Entropy

NAME = "login-secret"
_BYTES = 32


def login_secret(disk: Disk, data_directory: Path, entropy: Entropy) -> bytes:
    """The secret of this data directory; made at the first call. Raises OSError."""
    path = data_directory / NAME
    try:
        found = disk.read_bytes(path)
    except FileNotFoundError:
        found = b""
    if len(found) != _BYTES:  # a new file, or a damaged one
        found = entropy.below(1 << (8 * _BYTES)).to_bytes(_BYTES, "big")
        disk.write_atomic(path, found)
    return found

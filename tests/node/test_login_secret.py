"""The secret of a node without a cluster secret stays the same."""

from __future__ import annotations

from pathlib import Path

from mqd.io.disk import OsDisk
from mqd.io.entropy import RandomEntropy
from mqd.node.login_secret import NAME, login_secret


def test_a_secret_is_made_once(tmp_path: Path) -> None:
    disk, entropy = OsDisk(), RandomEntropy()
    first = login_secret(disk, tmp_path, entropy)
    assert len(first) == 32 and login_secret(disk, tmp_path, entropy) == first
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600
    (tmp_path / NAME).write_bytes(b"damaged")
    assert login_secret(disk, tmp_path, entropy) not in (first, b"damaged")

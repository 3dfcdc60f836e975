"""Extracts the source of an earlier commit, to run it beside the current source."""

from __future__ import annotations

import subprocess
from pathlib import Path

BEFORE = "94dec95df604f69dd1f1f487e55eb071dd87296c"
"""The previous release: the last commit that supports only metadata versions 1 and 2."""
OF_VERSION_1 = "f470fd6258fd33e185027e613d9ebb1dd3faf56e"
"""The last commit that supports only metadata version 1: a cluster may skip version 2."""
HERE = Path(__file__).resolve().parent.parent


def unpack(commit: str, directory: Path) -> str | None:
    """Extract the source of `commit` into `directory`. Returns None, or why that is impossible."""
    found = subprocess.run(
        ["git", "-C", str(HERE), "cat-file", "-e", f"{commit}^{{commit}}"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        return (
            f"this clone has no commit {commit[:7]}, the release before: fetch the whole "
            "history (git fetch --unshallow)"
        )
    archive = directory.with_suffix(".tar")
    subprocess.run(
        ["git", "-C", str(HERE), "archive", "-o", str(archive), commit, "mqd"], check=True
    )
    directory.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(directory)], check=True)
    return None

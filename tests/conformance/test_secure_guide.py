"""docs/SECURE_CLUSTER.md: every block of commands, run as it stands, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos.node import free_ports

from .guide import commands_of, page, run_guide

_REFUSAL = "Topic authorization failed."
_REFUSED = re.compile(r"^! (.*)$", re.MULTILINE)
FIRST_PORT, FIRST_PEER_PORT = 29092, 29192
SECONDS = 550
"""The guide promises ten minutes."""


@pytest.mark.mqd_only
@pytest.mark.timeout(SECONDS + 30)
def test_every_command_works(tmp_path: Path) -> None:
    commands = commands_of("SECURE_CLUSTER.md")
    assert _REFUSED.search(commands)
    assert f"This command fails with `{_REFUSAL}`:" in page("SECURE_CLUSTER.md")
    # bash -e ignores the exit code of a command that ! begins
    commands = _REFUSED.sub(
        r"if \1 2> refused; then echo 'this succeeded: \1' >&2; exit 1; fi\n"
        f"grep -F '{_REFUSAL}' refused >&2 || {{ cat refused >&2; exit 1; }}",
        commands,
    )
    assert commands.count("mqctl") > 10
    ports = free_ports(6)
    commands = commands.replace("29091 +", f"{ports[0] - 1} +")
    for number in range(3):
        commands = commands.replace(str(FIRST_PORT + number), str(ports[number]))
        commands = commands.replace(str(FIRST_PEER_PORT + number), str(ports[number + 3]))
    assert "hello" in run_guide(commands, tmp_path, seconds=SECONDS)

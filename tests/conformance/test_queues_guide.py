"""docs/QUEUES.md: every block of commands and every program, run as it stands, in the order of the
page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.node import free_ports

from .guide import commands_of, run_guide

FIRST_PORT = 29092
SECONDS = 240


@pytest.mark.mqd_only
@pytest.mark.timeout(SECONDS + 30)
def test_every_command_works(tmp_path: Path) -> None:
    commands = commands_of("QUEUES.md")
    assert commands.count("mqctl") > 25
    # mqd dev takes the port for clients and the next one for nodes
    [port, _] = sorted(free_ports(2))
    output = run_guide(commands.replace(str(FIRST_PORT), str(port)), tmp_path, seconds=SECONDS)
    for words in ("alice 30", "gave up 20", "stock client: 30", "broken", "sent", "memory"):
        assert words in output, words

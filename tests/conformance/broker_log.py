"""What a broker under test has logged: of mqd its standard error, of Apache Kafka its file."""

from __future__ import annotations

import time
from pathlib import Path

from chaos.node import Node

DEADLINE_S = 10.0
KAFKA_LOGS_FAILURES = "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.network=info"
"""For JAVA_TOOL_OPTIONS: scripts/kafka.sh logs warnings only, and Apache Kafka logs failed logins
and handshakes at INFO.
"""


def log_has(node: Node | None, kafka_home: Path | None, *words: str) -> bool:
    """Whether the broker logs a line with these words, soon. `node`: of mqd; otherwise
    `kafka_home` is the directory of Apache Kafka.
    """
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if node is not None:
            text = node.stderr()
        else:
            assert kafka_home is not None
            text = (kafka_home / "1" / "log").read_text(encoding="utf-8", errors="replace")
        if any(all(word in line for word in words) for line in text.splitlines()):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)

"""The good client's process: `python -m tests.hostile.good_client PORT SECONDS BYTES LOGIN`
produces that many bytes every 10 ms with acks=all. LOGIN: see login.py; empty for none.

It writes the longest wait for a response and the number of responses as one line of JSON, times in
seconds. The longest wait is Infinity where the broker closes the connection or does not respond for
a minute.
"""

from __future__ import annotations

import json
import math
import sys
import time

from mqd.protocol.batch_builder import build_batch
from mqd.testing.requests import decoded, frame
from tests.hostile.login import use
from tests.hostile.wire import Wire

TOPIC = "good"
EVERY_SECONDS = 0.01
VERSION = 9


def main() -> None:
    port, seconds, size = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    use(sys.argv[4])
    batch = bytes(build_batch([(None, b"x" * size)], timestamp=1_700_000_000_000))
    rows = [{"index": 0, "records": batch}]
    request = frame(
        "produce",
        VERSION,
        {"acks": -1, "timeout_ms": 30_000, "topic_data": [{"name": TOPIC, "partition_data": rows}]},
    )
    wire = Wire(port)
    waits = []
    ends_at = time.monotonic() + seconds
    due = time.monotonic()
    while due < ends_at:
        time.sleep(max(0.0, due - time.monotonic()))
        sent = time.monotonic()
        try:
            wire.send(request)
            answer = decoded("produce", VERSION, wire.receive())
        except OSError:
            waits.append(math.inf)
            break
        waits.append(time.monotonic() - sent)
        code = answer.responses[0].partition_responses[0].error_code
        assert code == 0, code
        due = max(due + EVERY_SECONDS, time.monotonic())
    waits.sort()
    print(
        json.dumps({"longest": waits[-1], "median": waits[len(waits) // 2], "answers": len(waits)})
    )


if __name__ == "__main__":
    main()

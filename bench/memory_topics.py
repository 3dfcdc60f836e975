"""What does a topic in memory cost and give, beside a topic on disk and one that syncs each record?

    python -m bench.memory_topics [--seconds N] [--json FILE]

runs one node of mqd, and measures for each kind of topic:

    latency      ms from `send` of one record of 100 bytes to its acknowledgement, median and p99
    produce      MB/s of records of 1,000 bytes, one producer, batches of 64 KiB
    consume      MB/s of the same records
    written      bytes that the node's process has given to disks meanwhile, per byte produced

    memory       mqd.storage=memory
    disk         the default: in the page cache, synced later
    flush        flush.before.ack=true

Client and node share the machine, so compare the kinds with one another.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trio

from chaos.node import LOOPBACK, Node, end_on_sigterm, free_port
from mqd.client import Admin, TopicPartition, connect, open_consumer, open_producer
from mqd.client.cluster import ClusterClient

KINDS = {
    "memory": {"mqd.storage": "memory", "mqd.memory.max.bytes": str(256 << 20)},
    "disk": {},
    "flush": {"flush.before.ack": "true"},
}
_SMALL = bytes(100)
_LARGE = bytes(range(250)) * 4


def written_bytes(pid: int) -> int:
    """Bytes that a process has caused to be written to storage, by the kernel's account."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


async def measure(client: ClusterClient, kind: str, pid: int, seconds: float) -> dict[str, float]:
    topic, place = f"bench-{kind}", TopicPartition(f"bench-{kind}", 0)
    await Admin(client).create_topic(topic, 1, 1, configs=KINDS[kind])
    times: list[float] = []
    async with open_producer(client) as producer:
        await producer.send(topic, _SMALL)
        ends_at = trio.current_time() + seconds
        while trio.current_time() < ends_at:
            began = time.perf_counter()
            await producer.send(topic, _SMALL)
            times.append(1000 * (time.perf_counter() - began))
    before, began, count = written_bytes(pid), time.perf_counter(), 0
    async with open_producer(client, batch_bytes=1 << 16) as producer:
        ends_at = trio.current_time() + seconds
        while trio.current_time() < ends_at:
            for _ in range(500):
                await producer.enqueue(topic, _LARGE)
            count += 500
        await producer.flush()
    produced_s = time.perf_counter() - began
    written = written_bytes(pid) - before
    began, read = time.perf_counter(), 0
    async with open_consumer(client, {place: "beginning"}, end="end") as consumer:
        async for batch in consumer:
            read += sum(len(record.value or b"") for record in batch.records)
    times.sort()
    return {
        "latency_ms": statistics.median(times),
        "latency_p99_ms": times[len(times) * 99 // 100],
        "produce_mb_s": count * len(_LARGE) / produced_s / 1e6,
        "consume_mb_s": read / (time.perf_counter() - began) / 1e6,
        "written_per_byte": written / (count * len(_LARGE)),
    }


async def run(seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mqd-bench-") as directory:
        port = free_port()
        options = (f"memory.topics.max.bytes={1 << 30}",)
        node = Node(Path(directory), options, port=port)
        node.start()
        try:
            async with connect(f"{LOOPBACK}:{port}") as client:
                return {kind: await measure(client, kind, node.pid, seconds) for kind in KINDS}
        finally:
            node.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    end_on_sigterm()
    results = trio.run(run, arguments.seconds)
    head = f"{'median ms':>11}{'p99 ms':>9}{'produce MB/s':>14}{'consume MB/s':>14}{'written':>9}"
    print(f"{'':8}{head}")
    for kind, row in results.items():
        print(
            f"{kind:8}{row['latency_ms']:11.3f}{row['latency_p99_ms']:9.3f}"
            f"{row['produce_mb_s']:14.1f}{row['consume_mb_s']:14.1f}{row['written_per_byte']:9.2f}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

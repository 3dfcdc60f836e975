"""Limits of the machine, measured in the same run. No broker can exceed them; each figure is shown
beside one of them.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bench.brokers import free_port
from bench.generators import HERE, BenchError, generate

CHUNK_BYTES = 1 << 20


def loopback_stream(total_bytes: int) -> float:
    """MB/s of one TCP stream over loopback, sent and received in 1-MiB pieces by two
    threads (both without the interpreter lock).
    """
    listener = socket.create_server(("127.0.0.1", 0))
    received = 0

    def receive() -> None:
        nonlocal received
        connection, _ = listener.accept()
        buffer = bytearray(CHUNK_BYTES)
        with connection:
            while got := connection.recv_into(buffer):
                received += got

    thread = threading.Thread(target=receive)
    thread.start()
    chunk = bytes(CHUNK_BYTES)
    start = time.perf_counter()
    with socket.create_connection(listener.getsockname()) as sender:
        for _ in range(total_bytes // CHUNK_BYTES):
            sender.sendall(chunk)
    thread.join()
    elapsed = time.perf_counter() - start
    listener.close()
    assert received == total_bytes // CHUNK_BYTES * CHUNK_BYTES
    return received / elapsed / 1e6


def page_cache_write(directory: Path, total_bytes: int) -> float:
    """MB/s of appending pieces of 1 MiB to a new file, without a sync."""
    path = directory / "page-cache-floor"
    chunk = os.urandom(CHUNK_BYTES)
    start = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for _ in range(total_bytes // CHUNK_BYTES):
            os.write(descriptor, chunk)
        return total_bytes / (time.perf_counter() - start) / 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def with_trio_echo(measure: Callable[[tuple[str, int]], float]) -> float:
    """Call `measure` with the port of a Trio echo server in its own process."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(HERE / "echo.py"), str(port)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BenchError("the Trio echo does not start")
        return measure(("127.0.0.1", port))
    finally:
        process.kill()
        process.communicate()


def echo_requests(connections: int, depth: int, requests: int) -> float:
    """Requests per second of the load generator with a Trio echo server and the same frames."""

    def measure(address: tuple[str, int]) -> float:
        result = generate("load", address, "echo", c=connections, d=depth, n=requests, x=True)
        return float(result["requests"] / result["seconds"])

    return with_trio_echo(measure)


def echo_latency(percentile: str, rate: int, seconds: float) -> float:
    """Microseconds of a round trip to a Trio echo server at a fixed rate. `percentile` is a field
    of the generator's output.
    """
    return with_trio_echo(
        lambda address: float(
            generate("load", address, "echo", c=4, r=rate, t=seconds, x=True)[percentile]
        )
    )


def machine(directory: Path) -> dict[str, str]:
    """A description of this machine."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    mount = subprocess.run(
        ["stat", "-f", "-c", "%T", str(directory)], capture_output=True, text=True
    )
    return {
        "processor": f"{len(os.sched_getaffinity(0))} x {model}",
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "data directory": mount.stdout.strip() or "unknown file system",
        "load average before": " ".join(f"{part:.2f}" for part in os.getloadavg()),
    }

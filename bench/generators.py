"""The two C generators (load.c, drain.c) and librdkafka's client: how to build, run and read them.

They run as processes of their own, so that what is measured is never the driver's interpreter. Each
prints one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS_MAX = 600


class BenchError(Exception):
    """A measurement that could not be taken; the message has the reason and the remedy."""


def binary(name: str) -> Path:
    """The compiled generator; compiled on first use of each version of its source, into the
    temporary directory.
    """
    sources = [HERE / f"{name}.c", HERE / "wire.h"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / "mqd-bench" / f"{name}-{digest}"
    if target.exists():
        return target
    compiler = shutil.which("cc")
    if compiler is None:
        raise BenchError(
            "the load generators are C and there is no `cc` in PATH: install gcc or clang "
            "(Debian: apt install gcc)"
        )
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".part")
    done = subprocess.run(
        [compiler, "-O2", "-o", str(partial), str(sources[0])], capture_output=True, text=True
    )
    if done.returncode:
        raise BenchError(f"{sources[0].name} does not compile:\n{done.stderr}")
    partial.rename(target)
    return target


def run(command: list[str]) -> dict[str, Any]:
    """Run a generator and return what it printed."""
    shown = " ".join([Path(command[0]).name, *command[1:]])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise BenchError(f"{shown}: not done after {SECONDS_MAX} s") from None
    if done.returncode:
        raise BenchError(f"{shown}: {done.stderr.strip() or done.stdout.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def generate(name: str, address: tuple[str, int], topic: str, **options: object) -> dict[str, Any]:
    """Run load or drain. An option is a letter of its command line; True stands for a bare flag."""
    host, port = address
    command = [str(binary(name)), "-h", host, "-p", str(port), "-T", topic]
    for letter, value in options.items():
        command += [f"-{letter}"] if value is True else [f"-{letter}", str(value)]
    return run(command)


def client_load(
    role: str, address: tuple[str, int], topic: str, messages: int, value_bytes: int, acks: int = 1
) -> dict[str, Any]:
    """Run confluent-kafka's producer or consumer (client_load.py) in a process of its own."""
    host, port = address
    return run(
        [
            sys.executable,
            str(HERE / "client_load.py"),
            role,
            f"{host}:{port}",
            topic,
            str(messages),
            str(value_bytes),
            str(acks),
        ]
    )

"""Builds and runs the two C generators (load.c, drain.c) and librdkafka's client, and reads their
output.

Each runs in its own process, so that this interpreter is not measured, and prints one line of JSON.
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
    """A measurement failed. The message has the reason and the remedy."""


def binary(name: str) -> Path:
    """The path of the compiled generator. Compiles each version of its source once, into the
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
    """Run a generator; returns its parsed output."""
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
    """Run load or drain. Each option is a letter of its command line; True: a flag without a
    value.
    """
    host, port = address
    command = [str(binary(name)), "-h", host, "-p", str(port), "-T", topic]
    for letter, value in options.items():
        command += [f"-{letter}"] if value is True else [f"-{letter}", str(value)]
    return run(command)


def client_load(
    role: str,
    address: tuple[str, int],
    topic: str,
    messages: int,
    value_bytes: int,
    acks: int = 1,
    command_config: Path | None = None,
) -> dict[str, Any]:
    """Run confluent-kafka's producer or consumer (client_load.py) in a process of its own.
    `command_config`: a file of client properties.
    """
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
            *([] if command_config is None else [str(command_config)]),
        ]
    )

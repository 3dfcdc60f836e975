"""Members of share groups in processes of stock clients: franz-go (franz_go/main.go) and Apache
Kafka's KafkaShareConsumer (java_share/ShareMember.java). Both have the same commands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pytest

from .test_kafka_tools import SCRIPT, have_tools

HERE = Path(__file__).resolve().parent
BUILD_S = 600
END_S = 60
POLL_MS = 500


@dataclass(frozen=True)
class Received:
    """A record that a member has acquired."""

    partition: int
    offset: int
    delivery_count: int
    value: str

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"


class ShareMember:
    """One process. A command that it cannot carry out ends it, and fails the test."""

    def __init__(self, command: Sequence[str], *, polls_renewed: bool = False) -> None:
        """`polls_renewed`: a poll returns records again whose locks the member has renewed."""
        self._polls_renewed = polls_renewed
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> ShareMember:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.leave()
        else:
            self.kill()

    def _ask(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{command}: {self._failure()}"
        return json.loads(line)

    def poll(self, milliseconds: int = POLL_MS) -> list[Received]:
        """One poll. franz-go accepts the records of the poll before, and so does Java in implicit
        mode."""
        return [Received(*row) for row in self._ask(f"poll {milliseconds}")]

    def polled(self, seconds: float = 60) -> list[Received]:
        """Polls until there are records."""
        deadline = time.monotonic() + seconds
        while not (found := self.poll()):
            assert time.monotonic() < deadline, f"no records within {seconds:g} s"
        return found

    def acknowledge(self, kind: str, *records: Received) -> None:
        """`kind`: accept, release, reject or renew."""
        self._ask(f"ack {kind} " + " ".join(one.place for one in records))

    def flush(self) -> list[tuple[int, str | None]]:
        """Partition and error of each acknowledgement since the last call."""
        return [(partition, error) for partition, error in self._ask("flush")]

    def renew(self, *records: Received) -> None:
        """Renew the locks of all records that the member holds."""
        self.acknowledge("renew", *records)
        assert {error for _, error in self.flush()} == {None}
        if self._polls_renewed:
            assert self.polled() == list(records)

    def leave(self) -> None:
        """Leave the group cleanly."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(END_S) == 0, self._failure()
        finally:
            self.kill()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                stream.close()

    def _failure(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


class Client(Protocol):
    """A stock client that starts members."""

    def __call__(
        self,
        address: str,
        group: str,
        topic: str,
        *,
        max_records: int = 500,
        explicit: bool = True,
    ) -> ShareMember:
        """A member. `max_records`: of one fetch, exactly. `explicit`: it acknowledges all records
        that it polls; franz-go has no such option."""
        ...


def franz_go(directory: Path) -> Client:
    """Builds the program. Skips the test without Go, or if its modules cannot be downloaded."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("needs Go: no 'go' in PATH or in /usr/local/go/bin")
    program = directory / "franz_go"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [go, *arguments],
            cwd=HERE / "franz_go",
            env={**os.environ, "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"},
            capture_output=True,
            text=True,
            timeout=BUILD_S,
        )

    downloaded = run("mod", "download")
    if downloaded.returncode:
        pytest.skip(f"cannot download the Go modules: {downloaded.stderr.strip()[-200:]}")
    built = run("build", "-o", str(program), ".")
    assert built.returncode == 0, built.stderr

    def start(
        address: str, group: str, topic: str, *, max_records: int = 500, explicit: bool = True
    ) -> ShareMember:
        options = ("-brokers", address, "-group", group, "-topic", topic)
        return ShareMember([str(program), *options, "-max-records", str(max_records)])

    return start


def java(directory: Path) -> Client:
    """Compiles the class. Skips the test without a JDK, or without the jars of Apache Kafka."""
    if not have_tools() or shutil.which("javac") is None:
        pytest.skip("needs a JDK ('java' and 'javac' in PATH) and `scripts/kafka.sh fetch`")
    home = subprocess.run([str(SCRIPT), "fetch"], capture_output=True, text=True, check=True)
    jars = f"{home.stdout.strip()}/libs/*"
    source = HERE / "java_share" / "ShareMember.java"
    subprocess.run(
        ["javac", "-cp", jars, "-d", str(directory), str(source)], check=True, timeout=BUILD_S
    )
    java = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    java += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}:{directory}"]

    def start(
        address: str, group: str, topic: str, *, max_records: int = 500, explicit: bool = True
    ) -> ShareMember:
        properties = {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit" if explicit else "implicit",
            "share.acquire.mode": "record_limit",
            "max.poll.records": str(max_records),
        }
        arguments = [f"{name}={value}" for name, value in properties.items()]
        command = [*java, "ShareMember", topic, *arguments]
        return ShareMember(command, polls_renewed=True)

    return start

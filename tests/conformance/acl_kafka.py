"""Apache Kafka's responses of the ACL matrix. Run it to record them for the default suite:
`.venv/bin/python -m tests.conformance.acl_kafka --rewrite`.

It starts one node of Apache Kafka with SASL PLAIN, and a user for each case.
"""

from __future__ import annotations

import argparse
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import UUID

import trio

from mqd.protocol import apis
from mqd.protocol.schema import decode_response_header, encode_request_header
from tests.server.acl_matrix import (
    ALL,
    CLOSED,
    VERSIONS_FILE,
    Case,
    as_text,
    cases,
    denied_in_all_versions,
    encoded,
    file_of,
    ids_of,
    is_expressible,
    prepare,
    prepare_groups,
    shape,
    substituted,
    versions_as_text,
)

SCRIPT = Path(__file__).parents[2] / "scripts" / "kafka.sh"
PASSWORD = "password"  # of every user of this test
_TIMEOUT_SECONDS = 15.0


Answers = tuple[dict[str, dict[str, str]], dict[tuple[str, int], str]]
"""Scenario -> case -> shape of the response; (scenario, version) -> shape."""


class SaslConnection:
    """A connection that has logged in with PLAIN."""

    def __init__(self, port: int, user: str, host: str = "127.0.0.1") -> None:
        """`host`: the address of the client."""
        address = ("127.0.0.1", port)
        self._socket = socket.create_connection(address, _TIMEOUT_SECONDS, (host, 0))
        try:
            self._log_in(user)
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self, user: str) -> None:
        """By hand: SaslHandshake 1, then SaslAuthenticate 1."""
        token = f"\0{user}\0{PASSWORD}".encode()
        for key, body in (
            (17, struct.pack(">h", 5) + b"PLAIN"),
            (36, struct.pack(">i", len(token)) + token),
        ):
            response = self._round_trip(struct.pack(">hhih", key, 1, 1, -1) + body)
            assert response[4:6] == b"\0\0", response

    def __enter__(self) -> SaslConnection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    async def __call__(
        self, api_name: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        return self._exchange(api_name, version, request)

    def _exchange(
        self, api_name: str, version: int, request: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        api = apis.by_name(api_name)
        assert api is not None, api_name
        frame = encode_request_header(api, version, 1, "acl") + encoded(api_name, version, request)
        response = self._round_trip(frame)
        _, position = decode_response_header(api, version, response)
        found: Mapping[str, Any] = api.decode_response(version, response, position)
        return found

    def _round_trip(self, frame: bytes) -> bytes:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)


def options(users: list[str]) -> tuple[str, ...]:
    """The options of any broker with an authorizer, and these users besides `admin`."""
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    passwords = " ".join(f'user_{user}="{PASSWORD}"' for user in ("admin", *users))
    name = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
    return (
        "sasl.enabled.mechanisms=PLAIN",
        f'{name}={jaas} username="admin" password="{PASSWORD}" {passwords};',
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users=User:admin;User:ANONYMOUS",
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "share.coordinator.state.topic.num.partitions=1",
    )


@contextmanager
def kafka(users: list[str], port: int) -> Iterator[int]:
    """A node of Apache Kafka with an authorizer, on this port and the next."""
    started_with = [
        f"listeners=SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        f"advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name=SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        *options(users),
    ]
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run([SCRIPT, "start", "1", str(port), folder, *started_with], check=True)
            yield port
        finally:
            subprocess.run([SCRIPT, "stop", folder], check=True)


def free_ports() -> int:
    """A free port whose successor is free, too: the first of the two."""
    while True:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def answers_of(requested: list[Case], port: int) -> Answers:
    return trio.run(_answers_of, requested, port)


async def _answers_of(requested: list[Case], port: int) -> Answers:
    found: dict[str, dict[str, str]] = {}
    with SaslConnection(port, "admin") as admin:
        ids = await prepare(admin, requested)
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not await prepare_groups(admin):
            assert time.monotonic() < deadline, "the coordinators do not load"
            await trio.sleep(0.1)
        await until_acls_apply(requested, port)
        for case in requested:
            scenario = case.scenario
            found.setdefault(scenario.title, {})[case.title] = await shape_from(
                port, case, ids, scenario.version
            )
        versions: dict[tuple[str, int], str] = {}
        for case, version in denied_in_all_versions(requested):
            if not is_expressible(case, version):
                continue
            try:
                text = await shape_from(port, case, ids, version)
            except ConnectionError:
                text = CLOSED
            versions[case.scenario.title, version] = text
    return found, versions


async def shape_from(port: int, case: Case, ids: Mapping[str, UUID], version: int) -> str:
    """The shape of the response to the user of the case."""
    scenario = case.scenario
    known = ids_of(case, ids)
    request = substituted(scenario.request, case.user, known)
    try:
        with ExitStack() as opened:
            if scenario.before is not None:
                admin = opened.enter_context(SaslConnection(port, "admin"))
                api, at, body = scenario.before
                before = await admin(api, at, substituted(body, case.user, known))
                assert not before["error_code"], before
            connection = opened.enter_context(SaslConnection(port, case.user, case.host))
            return shape(case, await connection(scenario.api, version, request))
    except Exception as error:
        error.add_note(f"version {version} of '{scenario.title}: {case.title}' to port {port}")
        raise


async def until_acls_apply(requested: list[Case], port: int) -> None:
    """Wait until the broker has the last ACL: it learns of them after the controller."""
    last = [case for case in requested if case.title.endswith("allow ALL")][-1]
    for _ in range(600):
        with SaslConnection(port, last.user, last.host) as connection:
            request = substituted(last.scenario.request, last.user, {})
            response = await connection(last.scenario.api, last.scenario.version, request)
            if response.get("error_code") != 31:
                return
        await trio.sleep(0.1)
    raise AssertionError("the ACLs do not apply")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="write the files of tests/golden")
    given = parser.parse_args()
    requested = cases()
    begun = time.monotonic()
    with kafka([case.user for case in requested], free_ports()) as port:
        found, versions = answers_of(requested, port)
    print(f"{len(requested)} cases in {time.monotonic() - begun:.1f} s")
    texts = {file_of(scenario): as_text(scenario, found[scenario.title]) for scenario in ALL}
    texts[VERSIONS_FILE] = versions_as_text(versions)
    for file, text in texts.items():
        if given.rewrite:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            print(f"{file.name} differs")


if __name__ == "__main__":
    main()

"""Clients that wait for one effect: a login, an open connection or a certificate that is refused or
replaced. Each runs in its own thread and notes when it happened.

Times are those of `time.monotonic`. A probe's problems are errors that are not the expected one.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import confluent_kafka

from mqd.client import sync
from mqd.client.errors import AuthenticationFailed, ClientError
from mqd.client.security import Security
from mqd.errors import ErrorCode
from mqd.types import TopicPartition

from .client_security import librdkafka_options
from .secure_clients import CountingNetwork
from .workload import is_refusal

INTERVAL_S = 0.05
JOIN_S = 30.0
TIMEOUT_S = 10.0
AUTHENTICATION = "authentication"
AUTHORIZATION = "authorization"


class Probe(ABC):
    """Tries something again and again until `finish`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """End, and wait for the thread."""
        self._stop.set()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            self.problems.append(f"{self.name}: no end within {JOIN_S:.0f} s")

    @property
    @abstractmethod
    def last_success(self) -> float:
        """When the last try succeeded; 0.0: none has."""

    @abstractmethod
    def run(self) -> None:
        """Try until `stopped`."""

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def pause(self) -> None:
        """Wait until the next try."""
        self._stop.wait(INTERVAL_S)

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:  # the trial reports it
            self.problems.append(f"{self.name}: {error!r}")


class LoginProbe(Probe):
    """New connections, each with a login, to one node after another."""

    def __init__(self, name: str, addresses: Sequence[str], security: Security) -> None:
        super().__init__(name)
        self.accepted: list[float] = []
        """When accepted logins began."""
        self.refused: dict[str, list[float]] = {address: [] for address in addresses}
        """Address -> when its refusals arrived."""
        self._security = security

    @property
    def worked(self) -> bool:
        """Whether a login was accepted."""
        return bool(self.accepted)

    @property
    def last_accepted(self) -> float:
        """When the last accepted login began."""
        return self.accepted[-1] if self.accepted else 0.0

    @property
    def last_success(self) -> float:
        return self.last_accepted

    def all_refuse(self) -> float | None:
        """When every node had refused a login, after the last accepted one. None: not yet."""
        since = [
            next((at for at in times if at > self.last_accepted), None)
            for times in self.refused.values()
        ]
        return None if None in since else max(at for at in since if at is not None)

    def run(self) -> None:
        while not self.stopped:
            for address in self.refused:
                began = time.monotonic()
                try:
                    with sync.connect(address, security=self._security):
                        self.accepted.append(began)
                except AuthenticationFailed:
                    self.refused[address].append(time.monotonic())
            self.pause()


class OpenProbe(Probe):
    """A client with open connections that produces until it gets the expected error."""

    def __init__(
        self, name: str, bootstrap: str, topic: str, security: Security, expected: str | None
    ) -> None:
        """`expected`: AUTHENTICATION, AUTHORIZATION, or None: no error until `finish`."""
        super().__init__(name)
        self.bootstrap = bootstrap
        self.topic = topic
        self.security = security
        self.expected = expected
        self.succeeded_at = 0.0
        """When the last acknowledgement arrived."""
        self.refused_at: float | None = None
        self.error = ""

    client = "mqd.client, producer"
    """For the report."""

    @property
    def last_success(self) -> float:
        return self.succeeded_at

    def refusal_time(self) -> float | None:
        """When the expected error arrived. None: not yet."""
        return self.refused_at

    def refuse(self, kind: str | None, text: str) -> None:
        """An error arrived. The first one counts."""
        if self.refused_at is not None:
            return
        self.refused_at, self.error = time.monotonic(), text
        if kind is None or kind != self.expected:
            self.problems.append(f"{self.name}: {text}")


class MqdOpenProbe(OpenProbe):
    """mqd.client. `opened`: how many connections it has opened."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._network = CountingNetwork()

    @property
    def opened(self) -> int:
        return self._network.connections

    def run(self) -> None:
        try:
            with (
                sync.connect(
                    self.bootstrap, security=self.security, network=self._network
                ) as client,
                client.producer() as producer,
            ):
                while not self.stopped:
                    producer.send(self.topic, b"probe")
                    self.succeeded_at = time.monotonic()
                    self.pause()
        except AuthenticationFailed as error:
            self.refuse(AUTHENTICATION, str(error))
        except ClientError as error:
            is_acl = error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            self.refuse(AUTHORIZATION if is_acl else None, str(error))


class ConfluentOpenProbe(OpenProbe):
    """confluent-kafka."""

    client = "confluent-kafka, producer"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.late_refusals: list[float] = []
        """When logins were refused after `switch`."""
        self._producer: confluent_kafka.Producer | None = None
        self._switched = False

    def switch(self, user: str, password: str) -> None:
        """Use another password for the next login."""
        assert self._producer is not None
        self._producer.set_sasl_credentials(user, password)
        self._switched = True

    def run(self) -> None:
        producer = self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "error_cb": self._on_error,
                "log_level": 0,
            }
            | librdkafka_options(self.security)
        )
        while not self.stopped and self.refused_at is None:
            try:
                producer.produce(self.topic, b"probe", on_delivery=self._on_delivery)
            except confluent_kafka.KafkaException as failure:  # the metadata had the error
                self._on_delivery(failure.args[0], None)
            producer.poll(INTERVAL_S)
        if self.refused_at is not None:
            producer.purge()
        producer.flush(TIMEOUT_S)

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is None:
            self.succeeded_at = time.monotonic()
        elif error.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self.refuse(AUTHORIZATION, str(error))
        elif error.code() != confluent_kafka.KafkaError._PURGE_QUEUE:
            self.refuse(None, str(error))

    def _on_error(self, error: Any) -> None:
        if error.code() == confluent_kafka.KafkaError._AUTHENTICATION and is_refusal(error):
            if self._switched:
                self.late_refusals.append(time.monotonic())
            else:
                self.refuse(AUTHENTICATION, str(error))


class MqdReadProbe(OpenProbe):
    """A consumer of mqd.client that reads what the others produce."""

    client = "mqd.client, consumer"

    def run(self) -> None:
        try:
            with (
                sync.connect(self.bootstrap, security=self.security) as client,
                client.consumer({TopicPartition(self.topic, 0): "beginning"}) as consumer,
            ):
                while not self.stopped:
                    batch = consumer.next(INTERVAL_S)
                    if batch is not None:
                        self.succeeded_at = time.monotonic()
        except ClientError as error:
            is_acl = error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
            self.refuse(AUTHORIZATION if is_acl else None, str(error))


def presented_certificate(port: int, ca: Path, own: Path | None = None) -> str:
    """A hash of the certificate that a listener on loopback presents. `own`: the certificate and
    key to present. Raises OSError.
    """
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = own is None
    if own is not None:
        context.load_cert_chain(own)
    with (
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        certificate = encrypted.getpeercert(binary_form=True)
    assert certificate is not None
    return hashlib.sha256(certificate).hexdigest()

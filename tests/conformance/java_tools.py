"""Apache Kafka's own clients, started as its command-line tools with client properties."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .test_kafka_tools import SCRIPT, TOOL_SECONDS

SECURITY = "org.apache.kafka.common.security"
LIST_TOPICS = "org.apache.kafka.tools.TopicCommand"
QUICK = {"default.api.timeout.ms": "4000", "request.timeout.ms": "3000", "retries": "0"}
"""Properties for a client that fails."""
_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"


class JavaClient:
    """Runs tools with these properties. `directory`: for files of this client. `token`: the file of
    its tokens.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        properties: Mapping[str, str],
        *,
        token: Path | None = None,
    ) -> None:
        self._file = directory / "client.properties"
        lines = (f"{key}={value}\n" for key, value in properties.items())
        self._file.write_text("".join(line.replace("\\", "\\\\") for line in lines))
        self._address = address
        self._environment = dict(os.environ)
        if token is not None:
            options = f"{_ALLOWED}.urls={token.as_uri()} {_ALLOWED}.files={token}"
            self._environment["JAVA_TOOL_OPTIONS"] = options

    def run(
        self, tool: str, *arguments: str, stdin: bytes | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        connection = ("--bootstrap-server", self._address, "--command-config", str(self._file))
        return subprocess.run(
            [str(SCRIPT), "tool", tool, *connection, *arguments],
            input=stdin,
            capture_output=True,
            timeout=TOOL_SECONDS,
            check=False,
            env=self._environment,
        )

    def output(self, tool: str, *arguments: str, stdin: bytes | None = None) -> str:
        done = self.run(tool, *arguments, stdin=stdin)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()
        return done.stdout.decode()

    def round_trip(self, topic: str, values: Sequence[str]) -> None:
        """Produce these values with kafka-console-producer.sh, then consume them."""
        tools = "org.apache.kafka.tools"
        text = "".join(f"{value}\n" for value in values).encode()
        self.output(f"{tools}.ConsoleProducer", "--topic", topic, stdin=text)
        limits = ("--from-beginning", "--max-messages", str(len(values)), "--timeout-ms", "30000")
        found = self.output(f"{tools}.consumer.ConsoleConsumer", "--topic", topic, *limits)
        assert sorted(found.split()) == sorted(values)

    def failure(self) -> str:
        """What kafka-topics.sh prints when it cannot list the topics."""
        done = self.run(LIST_TOPICS, "--list")
        assert done.returncode != 0, done.stdout.decode()
        return (done.stdout + done.stderr).decode()


def login_properties(mechanism: str, user: str, password: str) -> dict[str, str]:
    """Properties of PLAIN and SCRAM, without the protocol."""
    kind = "scram.Scram" if "SCRAM" in mechanism else "plain.Plain"
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{SECURITY}.{kind}LoginModule required username="{user}" '
        f'password="{quoted}";',
    }


def token_properties(token: Path) -> dict[str, str]:
    """Properties of OAUTHBEARER with a token in a file, without the protocol."""
    bearer = f"{SECURITY}.oauthbearer"
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f"{bearer}.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": f"{bearer}.OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }


def trust_properties(ca: Path) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(ca)}

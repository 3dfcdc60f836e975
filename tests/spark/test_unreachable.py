"""Brokers that cannot be reached: one sentence that names the option, without further attempts."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from pyspark_mqd.connection import Unreachable, client_for
from pyspark_mqd.errors import OptionError
from pyspark_mqd.offset_reader import OffsetReader
from pyspark_mqd.options import parse_options
from pyspark_mqd.pipelines.brokers import require_brokers
from pyspark_mqd.pipelines.cli import Failure, Settings

API_MS = 300


@pytest.fixture
def closed() -> Iterator[str]:
    """An address where nothing listens: a port that is bound, and refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def options_for(bootstrap: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "kafka.default.api.timeout.ms": str(API_MS),
        "subscribe": "t",
    }


def test_the_connector_names_its_option(closed: str) -> None:
    with pytest.raises(Unreachable) as failed:
        client_for(options_for(closed))
    text = str(failed.value)
    assert text.startswith(f"No broker of option 'kafka.bootstrap.servers' ('{closed}') answers: ")
    assert "Start the brokers, or correct the option" in text


def test_the_source_does_not_repeat_a_connect_timeout(closed: str) -> None:
    pauses: list[float] = []
    reader = OffsetReader(parse_options(options_for(closed), streaming=True), sleep=pauses.append)
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        reader.latest()
    assert pauses == [] and time.monotonic() - begun < 60


def test_an_address_that_is_none_names_the_option() -> None:
    with pytest.raises(OptionError, match=r"Option 'kafka.bootstrap.servers' is 'foo:bar'.*host:"):
        client_for(options_for("foo:bar"))


def test_a_pipeline_checks_the_brokers(closed: str) -> None:
    with pytest.raises(Failure, match=r"nothing listens at") as failed:
        require_brokers(Settings(closed))
    assert "--bootstrap" in failed.value.remedy
    with pytest.raises(Failure, match=r"--bootstrap is 'foo:bar'"):
        require_brokers(Settings("foo:bar"))

"""A client of a schema registry (Confluent's HTTP interface), by the standard library alone.

Schemas never change under their id, so they are kept for good; that an id is unknown is kept for a
short time only. A registry that does not answer is an `Outage`, never a bad record.
"""

from __future__ import annotations

import base64
import json
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from pyspark_mqd.recipes.running import Outage, Undecodable

MAGIC = 0
PREFIX = struct.Struct(">bI")
ATTEMPTS = 5
PAUSE_S = 0.5
TIMEOUT_S = 10.0
UNKNOWN_S = 30.0
"""How long an id that the registry does not know is not requested again."""


class Schema(NamedTuple):
    """A schema as text. `references` are those that it names, before it."""

    id: int
    type: str
    text: str
    references: tuple[str, ...] = ()


def split_prefix(value: bytes) -> tuple[int, bytes]:
    """The schema id, and what follows the prefix of five bytes. Raises Undecodable."""
    if len(value) < PREFIX.size:
        raise Undecodable(f"The value has {len(value)} bytes, too few for the id of a schema.")
    magic, schema_id = PREFIX.unpack_from(value)
    if magic != MAGIC:
        raise Undecodable(f"The value begins with byte {magic}, and 0 is expected before the id.")
    return schema_id, value[PREFIX.size :]


class Registry:
    """Schemas by id, and the latest one of a subject."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        pause: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if parts.username is not None:
            user = f"{parts.username}:{parts.password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
        self._timeout_s = timeout_s
        self._pause = pause
        self._clock = clock
        self._known: dict[int, Schema] = {}
        self._unknown: dict[int, float] = {}

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id. Raises Undecodable for an unknown one, Outage."""
        found = self._known.get(schema_id)
        if found is not None:
            return found
        if self._clock() < self._unknown.get(schema_id, 0.0):
            raise self._missing(schema_id)
        answer = self._get(f"/schemas/ids/{schema_id}")
        if answer is None:
            self._unknown[schema_id] = self._clock() + UNKNOWN_S
            raise self._missing(schema_id)
        self._known[schema_id] = self._schema(schema_id, answer)
        return self._known[schema_id]

    def latest(self, subject: str) -> Schema | None:
        """The newest schema of a subject, such as `orders-value`; None if there is none."""
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if answer is None else self._schema(int(answer["id"]), answer)

    def _missing(self, schema_id: int) -> Undecodable:
        return Undecodable(f"The schema registry does not know the schema id {schema_id}.")

    def _schema(self, schema_id: int, answer: Any) -> Schema:
        references: list[str] = []
        for each in answer.get("references") or ():
            path = f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}"
            found = self._get(path)
            if found is None:
                raise Undecodable(f"The schema {schema_id} refers to a schema that is missing.")
            inner = self._schema(int(found["id"]), found)
            references += [*inner.references, inner.text]
        return Schema(
            schema_id, answer.get("schemaType", "AVRO"), answer["schema"], tuple(references)
        )

    def _get(self, path: str) -> Any:
        """The answer; None for 404. Tries again where the registry is ill. Raises Outage."""
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(PAUSE_S * 2 ** (attempt - 1))
            request = urllib.request.Request(self._url + path, headers=self._headers)
            try:
                with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    problem = f"HTTP status {error.code}"
                    if error.code in (400, 401, 403):
                        break
            except (OSError, ValueError) as error:
                problem = str(error)
        raise Outage(f"The schema registry '{self._url}' cannot be used: {problem}.")

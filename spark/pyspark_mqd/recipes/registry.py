"""A client of a schema registry (Confluent's HTTP interface), by the standard library alone.

Schemas never change under their id, so the client caches them for good. It caches for a short time
that an id is unknown or unusable. A registry that does not respond, or responds with anything else
than a schema, is an `Outage`, never a bad record.
"""

from __future__ import annotations

import base64
import http.client
import json
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

from pyspark_mqd.recipes.running import Outage, Undecodable

MAGIC = 0
PREFIX = struct.Struct(">bI")
ATTEMPTS = 5
PAUSE_S = 0.5
TIMEOUT_S = 10.0
UNKNOWN_S = 30.0
"""How long an id that the registry does not know, or that cannot be used, is not requested
again.
"""

RESPONSE_BYTES_MAX = 4 << 20
REFERENCES_MAX = 200
REFERENCES_BYTES_MAX = 16 << 20
"""Schemas that one schema refers to, directly or not, and their text."""


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


class SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect, and gives the user and password to no other server.

    `urllib` would repeat the header wherever the redirect leads.
    """

    def redirect_request(self, req: Any, *arguments: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *arguments)
        if following is not None and _server(following.full_url) != _server(req.full_url):
            following.remove_header("Authorization")
        return following


def _server(url: str) -> tuple[str, str]:
    return urlsplit(url)[:2]


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
        self._refused: dict[int, tuple[float, str]] = {}
        self._open = urllib.request.build_opener(SameServer()).open

    def schema(self, schema_id: int) -> Schema:
        """The schema with this id. Raises Undecodable for an unknown one, Outage."""
        found = self._known.get(schema_id)
        if found is not None:
            return found
        until, reason = self._refused.get(schema_id, (0.0, ""))
        if self._clock() < until:
            raise Undecodable(reason)
        try:
            found = self._requested(schema_id)
        except Undecodable as error:
            self._refused[schema_id] = (self._clock() + UNKNOWN_S, str(error))
            raise
        self._known[schema_id] = found
        return found

    def latest(self, subject: str) -> Schema | None:
        """The newest schema of a subject, such as `orders-value`; None if there is none.

        Raises Undecodable, Outage.
        """
        found = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", needs_id=True)
        return None if found is None else self._schema(int(found["id"]), found)

    def _requested(self, schema_id: int) -> Schema:
        found = self._get(f"/schemas/ids/{schema_id}")
        if found is None:
            raise Undecodable(f"The schema registry does not know the schema id {schema_id}.")
        return self._schema(schema_id, found)

    def _schema(self, schema_id: int, found: Mapping[str, Any]) -> Schema:
        texts: dict[str, str] = {}
        self._follow(schema_id, found, texts)
        return Schema(
            schema_id, found.get("schemaType") or "AVRO", found["schema"], tuple(texts.values())
        )

    def _follow(self, schema_id: int, found: Mapping[str, Any], texts: dict[str, str]) -> None:
        """Add the schemas that one refers to, each once and after those that it refers to.

        `texts`: path -> text.
        """
        visited: set[str] = set()
        stack: list[tuple[str, str, list[str]]] = [("", "", _paths(found))]
        size = 0
        while stack:
            path, text, left = stack[-1]
            if not left:
                stack.pop()
                if path:
                    texts[path] = text
                continue
            following = left.pop(0)
            if following in visited:
                continue  # a second time, or in a circle, which the parser refuses
            visited.add(following)
            inner = self._get(following)
            if inner is None:
                raise Undecodable(f"The schema {schema_id} refers to a schema that is missing.")
            size += len(inner["schema"])
            if len(visited) > REFERENCES_MAX or size > REFERENCES_BYTES_MAX:
                raise Undecodable(
                    f"The schema {schema_id} refers to more than {REFERENCES_MAX} schemas, or to"
                    f" more than {REFERENCES_BYTES_MAX >> 20} MiB of them."
                )
            stack.append((following, inner["schema"], _paths(inner)))

    def _get(self, path: str, *, needs_id: bool = False) -> Mapping[str, Any] | None:
        """The schema at a path; None for 404. Tries again where the registry is ill.

        Raises Outage.
        """
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(PAUSE_S * 2 ** (attempt - 1))
            request = urllib.request.Request(self._url + path, headers=self._headers)
            try:
                with self._open(request, timeout=self._timeout_s) as response:
                    return parse_response(response.read(RESPONSE_BYTES_MAX + 1), needs_id=needs_id)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    problem = f"HTTP status {error.code}"
                    if error.code in (400, 401, 403):
                        break
            except (OSError, ValueError, http.client.HTTPException) as error:
                problem = str(error)
        raise Outage(f"The schema registry '{self._url}' cannot be used: {problem}.")


def parse_response(body: bytes, *, needs_id: bool) -> Mapping[str, Any]:
    """A schema in a response. Raises ValueError for anything else: the registry is ill."""
    if len(body) > RESPONSE_BYTES_MAX:
        raise ValueError(f"its response is larger than {RESPONSE_BYTES_MAX >> 20} MiB")
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("its response is nested too deep") from None
    if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
        raise ValueError(f"its response has no schema: {body[:100].decode(errors='replace')}")
    if needs_id and type(found.get("id")) is not int:
        raise ValueError("its response has no id")
    kind, references = found.get("schemaType"), found.get("references")
    if not isinstance(kind, str | None) or not isinstance(references, list | None):
        raise ValueError("its response has a type or references of another form")
    for each in references or ():
        is_whole = isinstance(each, dict) and isinstance(each.get("subject"), str)
        if not is_whole or type(each.get("version")) is not int:
            raise ValueError("its response has a reference without a subject and a version")
    if kind in (None, "AVRO"):
        try:
            json.loads(found["schema"])
        except RecursionError:
            pass  # the decoder refuses the schema
        except ValueError:
            raise ValueError("its response has an Avro schema that is not JSON") from None
    return found


def _paths(found: Mapping[str, Any]) -> list[str]:
    """The paths of the schemas that one names."""
    return [
        f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}"
        for each in found.get("references") or ()
    ]

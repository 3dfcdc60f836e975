"""Requests over HTTPS. Blocking, for a worker thread: it has a time limit, a size limit, and
follows no redirects. Without TLS, only this machine is reached.
"""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from mqd.security.tls_settings import LOOPBACK_HOSTS


def get_document(
    url: str, *, timeout_seconds: float, bytes_max: int, context: ssl.SSLContext | None = None
) -> bytes:
    """The body of a response with status 200. Without `context`, the certificates that the system
    trusts. Raises OSError with the reason.
    """
    return _request(url, "GET", None, {}, timeout_seconds, bytes_max, context)


def post_form(
    url: str,
    form: str,
    *,
    authorization: str,
    timeout_seconds: float,
    bytes_max: int,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """The body of the response to a form, encoded as in a query. Raises OSError with the reason."""
    headers = {
        "Authorization": authorization,
        "Content-Type": "application/x-www-form-urlencoded",
    }
    return _request(url, "POST", form, headers, timeout_seconds, bytes_max, context)


def _request(
    url: str,
    method: str,
    body: str | None,
    headers: dict[str, str],
    timeout_seconds: float,
    bytes_max: int,
    context: ssl.SSLContext | None,
) -> bytes:
    parts = urlsplit(url)
    if parts.hostname is None or not (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)
    ):
        raise OSError(f"{url!r} is not an https:// address")
    connection: HTTPConnection
    if parts.scheme == "https":
        context = context or ssl.create_default_context()
        connection = HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout_seconds, context=context
        )
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_seconds)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    try:
        connection.request(method, path, body, {"Accept": "application/json", **headers})
        with connection.getresponse() as response:
            if response.status != 200:
                raise OSError(f"the server responded with status {response.status}")
            data = response.read(bytes_max + 1)
    except (HTTPException, ValueError) as error:
        raise OSError(f"the server did not respond with HTTP: {error!r}") from None
    finally:
        connection.close()
    if len(data) > bytes_max:
        raise OSError(f"the document is larger than {bytes_max} bytes")
    return data

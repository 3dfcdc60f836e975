"""Gets a document over HTTPS. Blocking, for a worker thread: it has a time limit, a size limit, and
follows no redirects.
"""

from __future__ import annotations

import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit


def get_document(url: str, *, timeout_seconds: float, bytes_max: int) -> bytes:
    """The body of a response with status 200. Raises OSError with the reason."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in ("https", "http"):
        raise OSError(f"{url!r} is not an https:// address")
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=timeout_seconds,
            context=ssl.create_default_context(),
        )
    else:
        connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_seconds)
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"the server responded with status {response.status}")
        body = response.read(bytes_max + 1)
    except (HTTPException, ValueError) as error:
        raise OSError(f"the server did not respond with HTTP: {error!r}") from None
    finally:
        connection.close()
    if len(body) > bytes_max:
        raise OSError(f"the document is larger than {bytes_max} bytes")
    return body

"""Where the tokens of SASL/OAUTHBEARER come from: a file, or the token endpoint of a provider
(OAuth 2.0, client credentials). Each new login calls the source again.
"""

from __future__ import annotations

import json
import ssl
import time
from base64 import b64encode, urlsafe_b64encode
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

from mqd.client.errors import AuthenticationFailed
from mqd.errors import ErrorCode
from mqd.io.https import post_form
from mqd.io.threads import in_thread
from mqd.options import ConfigError

if TYPE_CHECKING:
    from mqd.security.jaas_tls import RequestTls

TOKEN_TIMEOUT_SECONDS = 10.0
"""For the response of a token endpoint, unless a property sets another time."""
_RESPONSE_BYTES_MAX = 256 * 1024
_EARLY = 0.8
"""A token is requested again after this part of its lifetime, as by Kafka's clients."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The token is the content of a file, which another program keeps current."""

    url: str

    def __call__(self) -> str:
        """Raises OSError."""
        return Path(unquote(urlsplit(self.url).path)).read_text(encoding="utf-8").strip()


@dataclass(slots=True)
class ClientCredentials:
    """Requests tokens with the id and the secret of a client (RFC 6749, 4.4)."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    encodes_header: bool = False
    """Whether id and secret are encoded as in a URL before Base64 (RFC 6749, 2.3.1). Kafka's
    default is off: `sasl.oauthbearer.header.urlencode`.
    """
    timeout_seconds: float = TOKEN_TIMEOUT_SECONDS
    tls: RequestTls | None = None
    """None: the certificates that the system trusts."""
    _token: str | None = field(default=None, repr=False, compare=False)
    _valid_until: float = field(default=0.0, repr=False, compare=False)

    async def __call__(self) -> str:
        """Raises OSError, or AuthenticationFailed if the provider refuses."""
        if self._token is not None and time.monotonic() < self._valid_until:
            return self._token
        body = await in_thread(self._request)
        try:
            response = json.loads(body)
            token, lifetime = response["access_token"], float(response.get("expires_in", 0))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise AuthenticationFailed(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"the token endpoint {self.url} did not respond with an access_token",
                remedy="check sasl.oauthbearer.token.endpoint.url and the client's id and secret",
            ) from None
        self._token, self._valid_until = str(token), time.monotonic() + _EARLY * lifetime
        return self._token

    def _request(self) -> bytes:
        names = (self.client_id, self.client_secret)
        credentials = ":".join(map(quote_plus, names) if self.encodes_header else names)
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        return post_form(
            self.url,
            urlencode(form),
            authorization=f"Basic {b64encode(credentials.encode()).decode()}",
            timeout_seconds=self.timeout_seconds,
            bytes_max=_RESPONSE_BYTES_MAX,
            context=self._context(),
        )

    def _context(self) -> ssl.SSLContext | None:
        """Raises OSError."""
        if self.tls is None or not self.url.startswith("https:"):
            return None
        from mqd.io.tls_contexts import client_context

        try:
            return client_context(self.tls.settings, check_host_name=self.tls.check_host_name)
        except ConfigError as error:
            raise OSError(f"sasl.jaas.config: {error}") from None


def unsigned_token(subject: str, lifetime_seconds: int) -> str:
    """A token without a signature, as Kafka's `unsecuredLoginStringClaim_sub` makes one. Brokers
    accept it only if an option allows it.
    """
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_seconds})
    encoded = (urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return ".".join(encoded) + "."

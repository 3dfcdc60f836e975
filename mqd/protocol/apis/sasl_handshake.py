"""SaslHandshake (key 17): the client chooses a SASL mechanism.

v0  the tokens follow as bare frames, without a request around them
v1  the tokens follow in SaslAuthenticate requests (KIP-152)
"""

from __future__ import annotations

from mqd.protocol.schema import INT16, STRING, Api, array, field, message

REQUEST = message(field("mechanism", STRING))

RESPONSE = message(
    field("error_code", INT16),
    field("mechanisms", array(STRING)),  # those that the listener enables
)

API = Api(
    key=17,
    name="SaslHandshake",
    versions=(0, 1),
    advertised=(0, 1),
    flexible_from=2,  # none is
    request=REQUEST,
    response=RESPONSE,
)

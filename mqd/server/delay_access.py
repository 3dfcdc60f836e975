"""Who may make a delay topic, or dead letters of a share group: the cluster writes them to other
topics, so the client that sets the configs of a topic or group needs WRITE on these.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqd.controller.delay_topics import topics_named_in
from mqd.errors import MqError
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import REFUSALS, is_authorized
from mqd.server.context import Context


def relay_refusal(context: Context, configs: Mapping[str, str | None]) -> MqError | None:
    """Why the client may not set these configs: it lacks WRITE on a topic that they name."""
    for name in topics_named_in(configs):
        if not is_authorized(context, Operation.WRITE, ResourceType.TOPIC, name):
            code, sentence = REFUSALS[ResourceType.TOPIC]
            return MqError(
                code,
                f"{sentence} Nodes would write records to {name!r}, so the principal needs WRITE "
                "on that topic.",
            )
    return None

"""Who may make a delay topic, or dead letters of a share group: the cluster writes them to other
topics, so the client that sets the configs of a topic or group needs WRITE on these.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqd.controller.delay_topics import topics_named_in
from mqd.resource_configs import GROUP_DEAD_LETTERS
from mqd.security.acls import Operation, ResourceType
from mqd.server.authorization import is_authorized
from mqd.server.context import Context


def may_relay_to(context: Context, configs: Mapping[str, str | None]) -> bool:
    """Whether the client may WRITE to each topic that these configs name."""
    names = [*topics_named_in(configs), configs.get(GROUP_DEAD_LETTERS)]
    return all(
        is_authorized(context, Operation.WRITE, ResourceType.TOPIC, name) for name in names if name
    )

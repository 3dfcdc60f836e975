"""The channel from any node to the controller (Kafka's NodeToControllerChannelManager)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

from mqd.controller.operations import Quorum
from mqd.controller.responses import names_not_controller
from mqd.errors import ErrorCode, MqError
from mqd.types import NodeId

Forward = Callable[[NodeId, str, int, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""(controller's node id, API name, version, request) -> response, over the peer listener.

Raises OSError if the node cannot be reached.
"""

OWN_REQUEST_TIMEOUT_S = 5.0
"""For requests of this node itself."""
_LEADER_POLL_S = 0.005
_LEADER_POLL_MAX_S = 0.1


class ControllerChannel:
    """Finds the controller, and retries until it has responded."""

    def __init__(self, node_id: NodeId, quorum: Quorum, forward: Forward) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self.forward = forward

    async def at_controller(
        self,
        here: Callable[[], Awaitable[Mapping[str, Any]]],
        api_name: str,
        version: int,
        request: Mapping[str, Any],
        *,
        timeout: float,
    ) -> Mapping[str, Any]:
        """The controller's response to `request`: from `here` if this node is the controller,
        otherwise from the node to which the request is forwarded.

        Retries while there is no controller, or while the last known one cannot be reached or is no
        longer the controller. After `timeout` seconds, raises REQUEST_TIMED_OUT: as after every
        timeout, the change may have happened.
        """
        pause = _LEADER_POLL_S
        with trio.move_on_after(max(0.0, timeout)):
            while True:
                status = self._quorum.status()
                try:
                    if status.ready:
                        return await here()
                    if status.leader_id not in (None, self._node_id):
                        response = await self.forward(
                            NodeId(status.leader_id), api_name, version, request
                        )
                        if not names_not_controller(response):
                            return response
                except OSError:
                    pass
                except MqError as error:
                    if error.code is not ErrorCode.NOT_CONTROLLER:
                        raise
                await trio.sleep(pause)
                pause = min(2 * pause, _LEADER_POLL_MAX_S)
        raise MqError(ErrorCode.REQUEST_TIMED_OUT, "No controller responded in time.")

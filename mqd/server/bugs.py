"""An unexpected exception is our bug. In a handler it closes the connection of the client; in a
core it stops the node.

A core that fails halfway may have broken an invariant: its later results cannot be trusted. A
handler has no state, so it is enough to close the connection that sent the request.
"""

from __future__ import annotations

_CORES = ("mqd.log.", "mqd.replica.")


def raised_in_core(error: BaseException) -> bool:
    """Whether the exception passed through a module that stores records or the replicas' state."""
    traceback = error.__traceback__
    while traceback is not None:
        # In a core it stops the node, elsewhere it closes one connection (I42).
        if traceback.tb_frame.f_globals.get("__name__", "").startswith(_CORES):
            return True
        traceback = traceback.tb_next
    return False

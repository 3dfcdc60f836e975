"""An unexpected exception is our bug: one in a handler costs its client the connection, one in a
core stops the node.

A core that fails halfway may have lost an invariant: nothing that it says later can be trusted. A
handler has no state of its own, so the connection that sent the request is all that has to go.
"""

from __future__ import annotations

_CORES = ("mqd.log.", "mqd.replica.")


def raised_in_core(error: BaseException) -> bool:
    """Whether the exception passed through a module that keeps records or what is known of
    replicas.
    """
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").startswith(_CORES):
            return True
        traceback = traceback.tb_next
    return False

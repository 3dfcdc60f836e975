"""The minimal Trio server: it returns each received frame unchanged.

`echo.py PORT`; prints "ready" when it listens.
"""

from __future__ import annotations

import sys
from functools import partial

import trio


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def main(port: int) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, echo, port, host="127.0.0.1"))
        print("ready", flush=True)


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))

"""What tests of the recipes need: a schema registry in a thread, and a descriptor file
without protoc.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """Answers as a schema registry does. `failures`: so many requests get status 503 first.

    `fixed`: path -> body instead. `moved`: the server that all other paths are redirected to.
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.authorizations: list[str] = []
        self.failures = 0
        self.fixed: dict[str, Any] = {}
        self.moved = ""
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.paths.append(self.path)
                if "Authorization" in self.headers:
                    registry.authorizations.append(self.headers["Authorization"])
                code, body = registry.answer(self.path)
                self.send_response(code)
                if code == 302:
                    self.send_header("Location", registry.moved + self.path)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None) -> int:
        """A new version of a subject; returns its id."""
        version = 1 + sum(each["subject"] == subject for each in self.schemas)
        row = {
            "subject": subject,
            "version": version,
            "id": len(self.schemas) + 1,
            "schema": json.dumps(schema),
        }
        self.schemas.append(row | ({"references": references} if references else {}))
        return int(row["id"])

    def answer(self, path: str) -> tuple[int, Any]:
        if self.failures > 0:
            self.failures -= 1
            return 503, {}
        if path in self.fixed:
            return 200, self.fixed[path]
        if self.moved:
            return 302, {}
        parts = path.strip("/").split("/")
        for each in reversed(self.schemas):
            if parts[:2] == ["schemas", "ids"] and parts[2] == str(each["id"]):
                return 200, {key: each[key] for key in ("schema", "references") if key in each}
            if (
                parts[0] == "subjects"
                and parts[1] == each["subject"]
                and parts[3] in ("latest", str(each["version"]))
            ):
                return 200, each
        return 404, {"error_code": 40403}

    def __enter__(self) -> FakeRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def order_descriptors() -> bytes:
    """What `protoc --include_imports --descriptor_set_out` writes for a message `shop.Order`."""
    from google.protobuf import descriptor_pb2, timestamp_pb2

    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    shop = files.file.add(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    state = shop.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    shop.message_type.add(name="Address").field.add(name="city", number=1, type=9, label=1)
    order = shop.message_type.add(name="Order")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=5, label=1)
    order.field.add(name="id", number=1, type=3, label=1)
    order.field.add(name="total", number=2, type=4, label=1)
    order.field.add(name="tags", number=3, type=9, label=3)
    order.field.add(name="state", number=4, type=14, label=1, type_name=".shop.State")
    order.field.add(name="at", number=5, type=11, label=1, type_name=".google.protobuf.Timestamp")
    order.field.add(name="address", number=6, type=11, label=1, type_name=".shop.Address")
    order.field.add(name="counts", number=7, type=11, label=3, type_name=".shop.Order.CountsEntry")
    return bytes(files.SerializeToString())

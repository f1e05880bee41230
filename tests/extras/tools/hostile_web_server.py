"""An MCP server over HTTP, on this computer, that behaves as a test says."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ECHO = {
    "name": "echo",
    "description": "Answers.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
}


class HostileHandler(BaseHTTPRequestHandler):
    """`serve` makes a subclass that has a behaviour."""

    behaviour = ""
    is_over = threading.Event()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  inherited
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = request.get("method")
        result: dict[str, Any] = {"error": {"code": -32601, "message": "unknown"}}
        if method == "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "web", "version": "1"}
            body = {"protocolVersion": version, "capabilities": {"tools": {}}}
            result = {"result": {**body, "serverInfo": info}}
        elif method == "tools/list":
            result = {"result": {"tools": [ECHO]}}
        elif method == "tools/call":
            if not self.misbehave():
                return
            text = str(self.headers.get("Authorization"))
            if self.behaviour == "long-message":
                text = "x" * 20_000_000
            result = {"result": {"content": [{"type": "text", "text": text}]}}
        if "id" not in request:
            self.respond(202, b"")
            return
        message = {"jsonrpc": "2.0", "id": request["id"], **result}
        self.respond(200, json.dumps(message).encode())

    def misbehave(self) -> bool:
        """Whether to answer all the same."""
        match self.behaviour:
            case "never-answers":
                self.is_over.wait(60)
                return False
            case "error-500":
                self.respond(500, b"<html>broken")
                return False
            case "no-json":
                self.respond(200, b"<html>hello")
                return False
            case "compressed":
                body = gzip.compress(b"x" * 50_000_000)
                self.respond(200, body, encoding="gzip")
                return False
            case "redirect":
                self.send_response(307)
                self.send_header("Location", "http://127.0.0.2:9/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False
            case "hangs-up":
                self.close_connection = True
                return False
        return True

    def do_GET(self) -> None:
        self.respond(405, b"")

    do_DELETE = do_GET  # noqa: N815  the names of `http.server`

    def respond(self, status: int, body: bytes, encoding: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True


@contextmanager
def serve(behaviour: str) -> Iterator[str]:
    """The address of a server, which ends with the block."""
    is_over = threading.Event()

    facts = {"behaviour": behaviour, "is_over": is_over}
    handler = type("Handler", (HostileHandler,), facts)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/mcp"
    finally:
        is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()

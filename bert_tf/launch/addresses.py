"""A rendezvous server for Horovod's Gloo: ranks started by srun publish and read their addresses there.

Serves the same by HTTP as Horovod's own launcher: PUT and GET of /<scope>/<key>, and 404 for a key not yet put. It does
not need Horovod, because if the ranks run in a container the machine around it may not have Horovod.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve_addresses() -> int:
    """Serves as long as this process lives; returns the port, which is open on all of the machine's interfaces."""
    values: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(200)

        def do_GET(self) -> None:
            self._answer(200 if self.path in values else 404, values.get(self.path, b""))

        def do_DELETE(self) -> None:
            self._answer(200)  # but keeps the address: a slower rank may still need it

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]

"""A web server on loopback that misbehaves as told."""

from __future__ import annotations

import http.server
import socket
import struct
import threading


class Page:
    """One file of the server, and how it answers.

    `statuses` are given out one after the other before the file is; `drop_after` cuts the connection after that many
    bytes of each answer in turn (0: by a reset), None not at all.
    """

    def __init__(self, content: bytes, *, ranges: bool = True):
        self.content, self.ranges = content, ranges
        self.statuses: list[tuple] = []
        self.drop_after: list[int | None] = []
        self.requests: list[dict[str, str]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        page = self.server.pages.get(self.path)
        if page is None:
            return self._answer(404, {}, 0)
        page.requests.append(dict(self.headers))
        if page.statuses:
            return self._answer(*page.statuses.pop(0), 0)
        body, status, headers = page.content, 200, {}
        if page.ranges and (wanted := self.headers.get("Range")):
            start = int(wanted[len("bytes=") : -1])
            if start >= len(body):
                return self._answer(416, {"Content-Range": f"bytes */{len(body)}"}, 0)
            status, headers = 206, {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            body = body[start:]
        self._answer(status, headers, len(body))
        drop = page.drop_after.pop(0) if page.drop_after else None
        self.wfile.write(body[:drop])
        if drop == 0:
            # A reset, not an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = drop is not None

    def _answer(self, status, headers, length):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Page] = {}
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def add(self, path: str, content: bytes, **options) -> Page:
        self.pages[path] = Page(content, **options)
        return self.pages[path]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, *_):
        # A client that was killed.
        pass

    def stop(self):
        self.shutdown()
        self.server_close()
        self._thread.join()

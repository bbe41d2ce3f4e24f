"""A web server on loopback that misbehaves as told."""

from __future__ import annotations

import hashlib
import http.server
import socket
import struct
import threading
import time


class Page:
    """One file of the server, and how it answers.

    `statuses` are given out one after the other before the file is; `drop_after` cuts the
    connection after that many bytes of each answer in turn (0: by a reset), None not at all;
    `lie_bytes` is added to the Content-Length; `delay_secs` is waited for after each kilobyte.
    """

    def __init__(self, content: bytes, *, ranges: bool = True, etag: bool = True, if_range: bool = True):
        self.content = content
        self.ranges, self.etag, self.if_range = ranges, etag, if_range
        self.statuses: list[tuple] = []
        self.drop_after: list[int | None] = []
        self.lie_bytes = 0
        self.delay_secs = 0.0
        self.requests: list[dict[str, str]] = []

    @property
    def tag(self) -> str:
        return f'"{hashlib.md5(self.content).hexdigest()}"'


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        page = self.server.pages.get(self.path)
        if page is None:
            return self._refuse(404, {})
        page.requests.append(dict(self.headers))
        if page.statuses:
            return self._refuse(*page.statuses.pop(0))
        body, status, headers = page.content, 200, {}
        if page.etag:
            headers["ETag"] = page.tag
        wanted = self.headers.get("Range")
        same = not page.if_range or self.headers.get("If-Range") in (None, page.tag)
        if wanted and page.ranges and same:
            start = int(wanted[len("bytes=") : -1])
            if start >= len(body):
                return self._refuse(416, {"Content-Range": f"bytes */{len(body)}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body = body[start:]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) + page.lie_bytes))
        self.end_headers()
        drop = page.drop_after.pop(0) if page.drop_after else None
        self._send(page, body if drop is None else body[:drop])
        if drop == 0:
            # A reset, not an orderly end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = drop is not None or page.lie_bytes != 0

    def _send(self, page, body):
        if not page.delay_secs:
            self.wfile.write(body)
            return
        for start in range(0, len(body), 1024):
            self.wfile.write(body[start : start + 1024])
            time.sleep(page.delay_secs)

    def _refuse(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
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

"""A server with as much of S3 as reading takes: HEAD and GET, with ranges, of the local files below a bucket.

As a `Child` it answers any request with its `endpoint`. An object's key is the file's absolute path.
"""

from __future__ import annotations

import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from harness import serve


class Objects(BaseHTTPRequestHandler):
    """Answers for one connection."""

    protocol_version = "HTTP/1.1"
    # The end of a body would wait for the head to be acknowledged.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def _answer(self, with_body: bool) -> None:
        # The first part of the path is the bucket.
        path = "/" + self.path.partition("?")[0].lstrip("/").partition("/")[2]
        if not os.path.isfile(path):
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = os.path.getsize(path)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first, last = 0, size - 1
        if asked:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", '"tag"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        self.end_headers()
        if with_body:
            with open(path, "rb") as file:
                self.connection.sendfile(file, first, last + 1 - first)


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    serve(lambda: {"endpoint": f"http://127.0.0.1:{server.server_port}"})


if __name__ == "__main__":
    main()

"""Serving ``/metrics`` and ``/healthz``. Each service declares its series in its own ``metrics.py``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from hiddenstream.contracts.errors import UsageError

_STOP_POLL_SECONDS = 0.05  # the library's half a second would be added to every service's exit


class MetricsServer:
    """Serves a registry and a health answer from a thread of its own.

    Attributes:
        port: the port it listens on, also where 0 was asked for.
    """

    def __init__(
        self, registry: CollectorRegistry, *, listen: tuple[str, int], is_healthy: Callable[[], bool] = lambda: True
    ) -> None:
        """Start serving.

        Args:
            listen: host and port; port 0 takes a free one.
            is_healthy: whether ``/healthz`` should say 200 rather than 503.

        Raises:
            UsageError: the port is taken.
        """

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, CONTENT_TYPE_LATEST, generate_latest(registry))
                elif self.path == "/healthz":
                    status, text = (200, b"ok\n") if is_healthy() else (503, b"not ready\n")
                    self._answer(status, "text/plain", text)
                else:
                    self._answer(404, "text/plain", b"only /metrics and /healthz are here\n")

            def _answer(self, status: int, content_type: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        try:
            self._server = ThreadingHTTPServer(listen, Handler)
        except OSError as error:
            raise UsageError(f"--metrics-listen {listen[0]}:{listen[1]}: {error}; choose another port, or 0") from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        threading.Thread(
            target=self._server.serve_forever, args=(_STOP_POLL_SECONDS,), name="metrics", daemon=True
        ).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

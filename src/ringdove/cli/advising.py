"""A small HTTP server that answers autoscalers: the last advice as JSON, and as metrics."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from ringdove.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The action as a number: what a scaling rule can compare.
_ACTIONS = {"in": -1, "stay": 0, "out": 1}


@contextmanager
def advising(host: str, port: int) -> Iterator[tuple[str, Callable[[dict[str, Any]], None]]]:
    """Serve while the block runs: gives the address, and a function that sets the answer."""
    answer: dict[str, Any] = {"action": "unknown", "reason": "There was no time to look yet."}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = self.path == "/metrics"
            body = as_metrics(answer) if text else json.dumps(answer).encode() + b"\n"
            self.send_response(200 if self.path in ("/", "/metrics") else 404)
            self.send_header("Content-Type", "text/plain" if text else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    def show(new: dict[str, Any]) -> None:
        nonlocal answer
        answer = new

    try:
        made = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise StoreUnavailable(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
    with made as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.server_port}", show
        finally:
            server.shutdown()
            thread.join()


def as_metrics(answer: dict[str, Any]) -> bytes:
    """The advice in Prometheus's format; nothing while there is none."""
    registry = CollectorRegistry()
    if answer["action"] in _ACTIONS:
        labels = {"queue": answer["observed"]["queue"]}
        figures = {
            "action": ("Scale in (-1), stay (0) or scale out (1).", _ACTIONS[answer["action"]]),
            "threads": ("Receiving threads there are.", answer["threads"]),
            "threads_wanted": ("Receiving threads there should be.", answer["threads_wanted"]),
            "servers_wanted": ("Servers there should be.", answer["servers_wanted"]),
            "utilisation": ("Share of threads that are busy.", answer["observed"]["utilisation"]),
        }
        for name, (text, value) in figures.items():
            gauge = Gauge(f"ringdove_plan_{name}", text, list(labels), registry=registry)
            gauge.labels(**labels).set(value)
    return generate_latest(registry)

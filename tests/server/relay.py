"""A relay between clients and a server that can keep the server's answers back, and be cut.

So a test decides at which point of a request a connection breaks: here, after the server has done
what was asked and before the client knows.
"""

import contextlib
import socket
import threading
from typing import Self


class Relay:
    """Passes bytes on; `hold` keeps answers back, `cut` breaks all connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._answers = threading.Event()
        self._answers.set()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ringdove://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Keep answers back from now on; those of connections that are cut meanwhile are lost."""
        self._answers.clear()

    def release(self) -> None:
        """Pass answers on again."""
        self._answers.set()

    def cut(self) -> None:
        """Break all connections; new ones are welcome."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            _close(one)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._listener)
        self.cut()
        self.release()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _close(client)
                continue
            self._sockets += [client, server]
            threading.Thread(target=self._pass, args=(client, server, None), daemon=True).start()
            answers = (server, client, self._answers)
            threading.Thread(target=self._pass, args=answers, daemon=True).start()

    def _pass(
        self, source: socket.socket, target: socket.socket, gate: threading.Event | None
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                if gate is not None and not gate.is_set():
                    gate.wait()
                    data += _what_else(source)
                target.sendall(data)
        except OSError:
            pass
        _close(source)
        _close(target)


def _what_else(source: socket.socket) -> bytes:
    """What has come meanwhile, so that it arrives as one with what was held."""
    try:
        return source.recv(1 << 20, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # It was never connected, or is closed already.
        one.shutdown(socket.SHUT_RDWR)
    one.close()

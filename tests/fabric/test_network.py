"""The network of the fault harness: a proxy that holds back, delays, loses and cuts when told."""

import contextlib
import socket
import threading
import time

import pytest

from fabric.harness.network import CLIENTS, Network, Weather
from ringdove.cluster.processes import free_ports

PATIENCE_S = 20


class Echo:
    """Answers everything with itself."""

    def __init__(self, port):
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(one,), daemon=True).start()

    def _answer(self, one):
        with contextlib.suppress(OSError), one:
            while data := one.recv(65_536):
                one.sendall(data)

    def close(self):
        self._listener.close()


@pytest.fixture
def place():
    """A proxy for A in front of an echo; how to call it as somebody."""
    port, real_port = free_ports(2, "127.0.0.1")
    echo = Echo(real_port)
    with Network() as network:
        network.name("127.1.0.2", "B")
        network.listen("A", "127.0.0.1", port, real_port)

        def call(source=""):
            address = ("127.1.0.2" if source == "B" else "127.0.0.1", 0)
            made = socket.create_connection(("127.0.0.1", port), PATIENCE_S, address)
            opened.append(made)
            return made

        opened = []
        yield network, call
        for one in opened:
            one.close()
    echo.close()


def ask(connection, data):
    connection.sendall(data)
    found = b""
    while len(found) < len(data):
        part = connection.recv(65_536)
        if not part:
            break
        found += part
    return found


def is_silent(connection, seconds=0.3):
    connection.settimeout(seconds)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(PATIENCE_S)
    return False


def test_everything_passes_a_calm_network(place):
    _, call = place
    data = bytes(range(256)) * 20_000
    connection = call()
    sender = threading.Thread(target=connection.sendall, args=(data,))
    sender.start()
    found = b""
    while len(found) < len(data):
        found += connection.recv(65_536)
    sender.join()
    assert found == data


def test_a_block_holds_back_what_passes_between_two_and_nothing_else(place):
    network, call = place
    client, other = call(), call("B")
    assert ask(other, b"x") == b"x"
    network.block(["A"], ["B"])
    other.sendall(b"held")
    late = call("B")
    late.sendall(b"late")
    assert is_silent(other)
    assert is_silent(late)
    assert ask(client, b"y") == b"y"
    network.calm()
    assert other.recv(100) == b"held"
    assert late.recv(100) == b"late"


def test_a_block_may_be_one_way(place):
    network, call = place
    other = call("B")
    assert ask(other, b"x") == b"x"
    network.spoil(["A"], ["B"], Weather(blocked=True))
    other.sendall(b"heard")
    assert is_silent(other)
    network.calm()
    assert other.recv(100) == b"heard"


def test_what_was_ended_during_a_block_is_ended_after_it(place):
    network, call = place
    other = call("B")
    assert ask(other, b"x") == b"x"
    network.block(["A"], ["B"])
    other.sendall(b"last")
    other.shutdown(socket.SHUT_WR)
    assert is_silent(other)
    network.calm()
    assert other.recv(100) == b"last"
    assert other.recv(100) == b""


def test_delayed_bytes_come_late_and_in_order(place):
    network, call = place
    client = call()
    assert ask(client, b"x") == b"x"
    network.spoil([CLIENTS], ["A"], Weather(delay_s=0.2))
    began_s = time.monotonic()
    assert ask(client, b"late") == b"late"
    assert time.monotonic() - began_s >= 0.2
    client.sendall(b"1")
    network.spoil([CLIENTS], ["A"], Weather(delay_s=0.01))
    assert ask(client, b"2")[:1] == b"1"


def test_lost_bytes_take_their_connection_with_them(place):
    network, call = place
    client = call()
    assert ask(client, b"x") == b"x"
    network.spoil([CLIENTS], ["A"], Weather(loss=1.0))
    with contextlib.suppress(ConnectionError):
        assert ask(client, b"gone") == b""
    network.calm()
    assert ask(call(), b"y") == b"y"


def test_a_cut_breaks_connections_and_new_ones_are_welcome(place):
    network, call = place
    client, other = call(), call("B")
    assert ask(client, b"x") == ask(other, b"x") == b"x"
    network.cut(["A"], ["B"])
    with contextlib.suppress(ConnectionError):
        assert other.recv(1) == b""
    assert ask(client, b"y") == b"y"
    assert ask(call("B"), b"z") == b"z"


def test_nobody_behind_the_proxy_is_a_broken_connection():
    port, real_port = free_ports(2, "127.0.0.1")
    with Network() as network:
        network.listen("A", "127.0.0.1", port, real_port)
        connection = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        with connection, contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""

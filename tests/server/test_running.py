"""The servers that other tests use: they start, stop, and start again on the same port."""

import ringdove
from server.running import ServerProcess, ServerThread


def test_a_server_in_a_thread_stops_and_starts_again(server: ServerThread):
    with ringdove.connect(server.url) as rd:
        rd.create_queue("q").send(b"kept")
    url = server.url
    server.stop()
    server.start()
    assert server.url == url
    with ringdove.connect(server.url) as rd:
        assert rd.queue("q").receive(max=1)[0].body == b"kept"


def test_a_server_in_a_process_is_killed_and_starts_again(process: ServerProcess):
    with ringdove.connect(process.url) as rd:
        rd.create_queue("q").send(b"kept")
        process.kill()
        process.start()
        assert rd.queue("q").receive(max=1, wait=10)[0].body == b"kept"
    assert process.terminate() == 0

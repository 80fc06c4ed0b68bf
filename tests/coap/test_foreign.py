"""Clients that others wrote, unmodified: aiocoap as a library and as a command, libcoap's command."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import aiocoap
import pytest

from server.running import PATIENCE_S, wait_for

AIOCOAP = str(Path(sys.executable).with_name("aiocoap-client"))
LIBCOAP = next(filter(shutil.which, ("coap-client-notls", "coap-client")), None)

BODY = os.urandom(2_000).hex().encode()


@pytest.fixture(autouse=True)
def _libcoap():
    if LIBCOAP is None:
        if os.environ.get("CI"):
            pytest.fail("coap-client is missing: tools/get-program libcoap3-bin coap-client")
        pytest.skip("coap-client is missing: tools/get-program libcoap3-bin coap-client")


@pytest.fixture
def url(port, queue):
    return f"coap://127.0.0.1:{port}/q/{queue.name}"


def command(*words, **options):
    done = subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False, **options)
    return done.stdout, done.stderr.decode()


class TestLibcoap:
    def test_it_sends_and_receives(self, url, queue):
        assert command(LIBCOAP, "-m", "post", "-t", "json", "-e", '{"kwh": 1}', url) == (b"", "")
        assert command(LIBCOAP, "-m", "put", "-N", "-e", "plain", f"{url}?key=m1") == (b"", "")
        [first] = queue.peek(1)
        assert first.attributes == {"content_type": "application/json"}
        got = [command(LIBCOAP, f"{url}?ack=auto")[0].strip() for _ in range(2)]
        assert got == [b'{"kwh": 1}', b"plain"]

    @pytest.mark.parametrize("size", ["64", "1024"])
    def test_it_sends_and_receives_in_blocks(self, url, queue, size, tmp_path):
        (tmp_path / "body").write_bytes(BODY)
        told = command(LIBCOAP, "-m", "put", "-b", size, "-f", str(tmp_path / "body"), url)
        assert told == (b"", "")
        assert [message.body for message in queue.peek()] == [BODY]
        assert command(LIBCOAP, "-b", size, url)[0].strip() == BODY

    def test_it_observes(self, server, url, queue):
        before = server.server.coap.observers
        observer = subprocess.Popen([LIBCOAP, "-s", "60", url], stdout=subprocess.PIPE)
        wait_for(lambda: server.server.coap.observers > before, "it observes")
        queue.send_many([b"first", b"second"])
        wait_for(lambda: queue.stats().subscriptions["default"] == (0, 0, 0), "both are done")
        observer.terminate()
        assert b"firstsecond" in observer.communicate(timeout=PATIENCE_S)[0].replace(b"\n", b"")

    def test_it_waits_for_a_response_that_comes_late(self, server, url, queue):
        waiting = subprocess.Popen(
            [LIBCOAP, "-B", "60", f"{url}?wait=60&ack=auto"], stdout=subprocess.PIPE
        )
        wait_for(lambda: server.server._broker.dequeuer.parked, "it waits")
        queue.send(b"late")
        assert waiting.communicate(timeout=PATIENCE_S)[0].strip() == b"late"

    def test_it_discovers_and_is_told_what_is_wrong(self, url, queue):
        links, _ = command(LIBCOAP, url.partition("/q/")[0] + "/.well-known/core?rt=ringdove.queue")
        assert f'</q/{queue.name}>;rt="ringdove.queue";obs'.encode() in links
        _, told = command(LIBCOAP, f"{url}-other")
        assert "4.04 There is no queue" in told


class TestAiocoapCommand:
    def test_it_sends_and_receives(self, url, queue):
        command(AIOCOAP, "-m", "POST", "--payload", "hello", f"{url}?key=m1&a.site=north")
        command(AIOCOAP, "-m", "PUT", "--non", "--payload", "world", url)
        [first] = queue.peek(1)
        assert (first.body, first.key, first.attributes) == (b"hello", b"m1", {"site": "north"})
        body, told = command(AIOCOAP, url)
        assert body.strip() == b"hello"
        receipt = told.partition("?receipt=")[2].split()[0]
        command(AIOCOAP, "-m", "DELETE", f"{url}?receipt={receipt}")
        assert queue.stats().subscriptions["default"] == (1, 0, 0)

    def test_it_sends_in_blocks_and_discovers(self, url, queue, tmp_path):
        (tmp_path / "body").write_bytes(BODY)
        command(AIOCOAP, "-m", "PUT", "--payload", f"@{tmp_path / 'body'}", url)
        assert [message.body for message in queue.peek()] == [BODY]
        links, _ = command(AIOCOAP, url.partition("/q/")[0] + "/.well-known/core")
        assert queue.name.encode() in links


def with_aiocoap(work):
    """Run something with an aiocoap client on an event loop of its own."""

    async def main():
        context = await aiocoap.Context.create_client_context()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await work(context)
        finally:
            await context.shutdown()

    return asyncio.run(main())


class TestAiocoap:
    def test_it_sends_and_receives_in_blocks(self, url, queue):
        async def work(context):
            put = aiocoap.Message(code=aiocoap.PUT, uri=url, payload=BODY, content_format=60)
            stored = await context.request(put).response
            got = await context.request(aiocoap.Message(code=aiocoap.GET, uri=url)).response
            place = "/".join(got.opt.location_path), got.opt.location_query[0]
            gone = aiocoap.Message(
                code=aiocoap.DELETE, uri=f"{url.partition('/q/')[0]}/{place[0]}?{place[1]}"
            )
            return stored, got, await context.request(gone).response

        stored, got, gone = with_aiocoap(work)
        assert (stored.code, got.code, gone.code) == (
            aiocoap.CHANGED, aiocoap.CONTENT, aiocoap.DELETED,
        )  # fmt: skip
        assert (got.payload, int(got.opt.content_format)) == (BODY, 60)
        assert queue.stats().subscriptions["default"] == (0, 0, 0)

    def test_it_observes_configuration_that_is_retained(self, url, queue):
        queue.send(b"v1")

        async def work(context):
            asked = aiocoap.Message(code=aiocoap.GET, uri=f"{url}/last", observe=0)
            request = context.request(asked)
            first = await request.response
            changes = aiter(request.observation)
            heard = [first.payload]
            for version in (b"v2", BODY):
                await asyncio.to_thread(queue.send, version)
                heard.append((await anext(changes)).payload)
            request.observation.cancel()
            return heard

        assert with_aiocoap(work) == [b"v1", b"v2", BODY]

    def test_many_at_once_are_all_stored(self, url, queue):
        async def work(context):
            posts = [
                aiocoap.Message(code=aiocoap.POST, uri=url, payload=b"%d" % number)
                for number in range(100)
            ]
            return [
                answer.code
                for answer in await asyncio.gather(*(context.request(p).response for p in posts))
            ]

        assert set(with_aiocoap(work)) == {aiocoap.CHANGED}
        assert {m.body for m in queue.receive(max=200)} == {b"%d" % n for n in range(100)}

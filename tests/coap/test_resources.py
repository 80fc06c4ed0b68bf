"""What the resources of queues do, method by method."""

import pytest

from coap.device import FORGET, OBSERVE, Device
from ringdove.protocol.coap.blocks import Block
from ringdove.protocol.coap.packet import Code, Kind, Option, uint
from server.running import wait_for

JSON = (Option.CONTENT_FORMAT, uint(50))


def receipt_of(packet):
    [query] = packet.values(Option.LOCATION_QUERY)
    return query.decode()


class TestSending:
    @pytest.mark.parametrize("method", [Code.POST, Code.PUT])
    def test_the_acknowledgement_says_that_the_message_is_stored(self, queue, device, method):
        asked = device.request(method, f"/q/{queue.name}?key=m1&a.site=north", b"21.5", JSON)
        device.send(asked)
        answer = device.read()
        assert (answer.kind, answer.code, answer.mid, answer.token) == (
            Kind.ACK, Code.CHANGED, asked.mid, asked.token,
        )  # fmt: skip
        [message] = queue.receive()
        assert (message.body, message.key) == (b"21.5", b"m1")
        assert message.attributes == {"site": "north", "content_type": "application/json"}

    def test_one_that_need_not_be_confirmed_is_answered_likewise(self, queue, device):
        answer = device.ask(Code.POST, f"/q/{queue.name}", b"x", kind=Kind.NON)
        assert (answer.kind, answer.code, answer.token) == (Kind.NON, Code.CHANGED, b"t")
        assert [m.body for m in queue.receive()] == [b"x"]

    def test_an_id_is_stored_once(self, queue, device):
        for _ in range(2):
            assert device.ask(Code.PUT, f"/q/{queue.name}?id=a", b"x").code == Code.CHANGED
        assert len(queue.receive(max=10)) == 1

    @pytest.mark.parametrize(
        ("uri", "payload", "code"),
        [
            ("/q/none", b"x", Code.NOT_FOUND),
            ("/other", b"x", Code.NOT_FOUND),
            ("/q/{}?kye=m1", b"x", Code.BAD_REQUEST),
            ("/q/{}?priority=3", b"x", Code.BAD_REQUEST),
            ("/q/{}?priority=high", b"x", Code.BAD_REQUEST),
            ("/q/{}/last", b"x", Code.METHOD_NOT_ALLOWED),
        ],
    )
    def test_a_mistake_is_explained(self, queue, device, uri, payload, code):
        answer = device.ask(Code.POST, uri.format(queue.name), payload)
        assert answer.code == code
        assert answer.payload[-1:] in b".?"
        assert len(queue.receive()) == 0

    def test_a_body_that_is_too_large_for_its_queue_is_refused(self, rd, device):
        small = rd.create_queue("small", body_bytes_max=10)
        assert device.ask(Code.POST, "/q/small", bytes(11)).code == Code.TOO_LARGE
        assert len(small.receive()) == 0

    def test_a_full_queue_is_busy_and_says_when_to_come_back(self, rd, device):
        rd.create_queue("full", bytes_max=10, body_bytes_max=10)
        device.ask(Code.POST, "/q/full", b"x")
        answer = device.ask(Code.POST, "/q/full", b"x")
        assert (answer.code, answer.number(Option.MAX_AGE)) == (Code.UNAVAILABLE, 1)

    @pytest.mark.parametrize(
        ("option", "code"),
        [
            ((9, b"oscore"), Code.BAD_OPTION),
            ((Option.PROXY_URI, b"coap://elsewhere"), Code.PROXYING_NOT_SUPPORTED),
            ((Option.URI_QUERY, b"\xff"), Code.BAD_REQUEST),
        ],
    )
    def test_what_must_be_understood_and_is_not_is_refused(self, queue, device, option, code):
        assert device.ask(Code.POST, f"/q/{queue.name}", b"x", option).code == code

    def test_an_option_that_need_not_be_understood_is_passed_over(self, queue, device):
        assert device.ask(Code.POST, f"/q/{queue.name}", b"x", (258, b"")).code == Code.CHANGED


class TestReceiving:
    def test_a_message_is_leased_until_it_is_deleted(self, queue, device):
        queue.send(b"one", attributes={"content_type": "application/json"})
        answer = device.ask(Code.GET, f"/q/{queue.name}")
        assert (answer.code, answer.payload) == (Code.CONTENT, b"one")
        assert answer.number(Option.CONTENT_FORMAT) == 50
        assert len(answer.values(Option.ETAG)) == 1
        assert answer.number(Option.MAX_AGE) == 0
        assert queue.stats().subscriptions["default"] == (0, 1, 0)

        gone = device.ask(Code.DELETE, f"/q/{queue.name}?{receipt_of(answer)}")
        assert gone.code == Code.DELETED
        assert queue.stats().subscriptions["default"] == (0, 0, 0)

    def test_a_stale_receipt_is_a_conflict(self, queue, device):
        queue.send(b"one")
        held = device.ask(Code.GET, f"/q/{queue.name}?lease_ms=1")
        wait_for(lambda: len(queue.receive()), "the lease ends")
        answer = device.ask(Code.DELETE, f"/q/{queue.name}?{receipt_of(held)}")
        assert answer.code == Code.CONFLICT

    def test_with_ack_auto_it_is_done_when_it_is_answered(self, queue, device):
        queue.send(b"one")
        answer = device.ask(Code.GET, f"/q/{queue.name}?ack=auto")
        assert (answer.payload, answer.values(Option.LOCATION_QUERY)) == (b"one", [])
        assert queue.stats().subscriptions["default"] == (0, 0, 0)

    def test_nothing_has_no_tag(self, queue, device):
        answer = device.ask(Code.GET, f"/q/{queue.name}")
        assert (answer.code, answer.payload, answer.values(Option.ETAG)) == (Code.CONTENT, b"", [])

    def test_a_message_of_another_format_than_accepted_stays(self, queue, device):
        queue.send(b"one", attributes={"content_type": "text/plain"})
        wanted = (Option.ACCEPT, uint(50))
        assert device.ask(Code.GET, f"/q/{queue.name}?ack=auto", b"", wanted).code == (
            Code.NOT_ACCEPTABLE
        )
        wait_for(lambda: queue.stats().waiting(), "the message is given back")
        plain = (Option.ACCEPT, b"")
        assert device.ask(Code.GET, f"/q/{queue.name}?ack=auto", b"", plain).payload == b"one"

    def test_a_receive_that_waits_is_acknowledged_first_and_answered_later(self, queue, device):
        asked = device.request(Code.GET, f"/q/{queue.name}?wait=30&ack=auto")
        device.send(asked)
        alone = device.read()
        assert (alone.kind, alone.code, alone.mid) == (Kind.ACK, Code.EMPTY, asked.mid)
        queue.send(b"late")
        answer = device.read()
        assert (answer.kind, answer.token, answer.payload) == (Kind.CON, asked.token, b"late")
        device.acknowledge(answer)

    def test_a_message_for_one_who_does_not_want_it_any_more_is_given_back(self, queue, device):
        device.send(device.request(Code.GET, f"/q/{queue.name}?wait=30"))
        device.read()
        queue.send(b"late")
        device.acknowledge(device.read(), Kind.RST)
        wait_for(lambda: queue.stats().waiting(), "the message is given back")

    @pytest.mark.parametrize(
        "query", ["wait=61", "wait=-1", "ack=never", "lease_ms=0", "receipt=x", "a.x=1"]
    )
    def test_a_mistake_is_explained(self, queue, device, query):
        assert device.ask(Code.GET, f"/q/{queue.name}?{query}").code == Code.BAD_REQUEST


class TestObserving:
    def test_each_message_is_told_and_done_when_the_device_has_it(self, queue, device):
        begun = device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        assert (begun.kind, begun.code, begun.payload) == (Kind.ACK, Code.CONTENT, b"")
        assert begun.number(Option.OBSERVE) == 0
        assert begun.number(Option.MAX_AGE) > 0, "else clients would ask again at once"
        counts = []
        for command in (b"on", b"off"):
            queue.send(command)
            told = device.read()
            assert (told.kind, told.token, told.payload) == (Kind.CON, b"t", command)
            assert queue.stats().subscriptions["default"] == (0, 1, 0)
            counts.append(told.number(Option.OBSERVE))
            device.acknowledge(told)
            wait_for(lambda: queue.stats().subscriptions["default"] == (0, 0, 0), "it is done")
        assert counts == sorted(set(counts))
        device.ask(Code.GET, f"/q/{queue.name}", b"", FORGET)

    def test_a_device_that_was_away_catches_up(self, queue, device):
        queue.send_many([b"1", b"2", b"3"])
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        heard = []
        for _ in range(3):
            told = device.read()
            heard.append(told.payload)
            device.acknowledge(told)
        assert heard == [b"1", b"2", b"3"]

    def test_with_ack_delete_the_receipt_comes_along(self, queue, device):
        device.ask(Code.GET, f"/q/{queue.name}?ack=delete", b"", OBSERVE)
        queue.send(b"on")
        told = device.read()
        device.acknowledge(told)
        assert device.ask(Code.DELETE, f"/q/{queue.name}?{receipt_of(told)}").code == Code.DELETED
        assert queue.stats().subscriptions["default"] == (0, 0, 0)

    def test_a_device_that_rejects_a_notification_is_told_no_more(self, server, queue, device):
        before = server.server.coap.observers
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        queue.send(b"on")
        device.acknowledge(device.read(), Kind.RST)
        wait_for(lambda: server.server.coap.observers == before, "the observer is forgotten")
        wait_for(lambda: queue.stats().waiting(), "the message is given back")

    def test_a_device_that_asks_to_be_forgotten_is(self, server, queue, device):
        before = server.server.coap.observers
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        assert server.server.coap.observers == before + 1
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        assert server.server.coap.observers == before + 1
        answer = device.ask(Code.GET, f"/q/{queue.name}", b"", FORGET)
        assert answer.number(Option.OBSERVE) is None
        assert server.server.coap.observers == before

    def test_a_message_told_to_a_device_that_leaves_is_given_back(self, queue, device):
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        queue.send(b"on")
        told = device.read()
        device.ask(Code.GET, f"/q/{queue.name}", b"", FORGET)
        wait_for(lambda: queue.stats().waiting(), "the message is given back")
        device.acknowledge(told)
        assert device.heard() == []
        assert queue.stats().waiting() == 1

    def test_the_end_of_the_queue_is_the_last_word(self, rd, queue, device):
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        rd.delete_queue(queue.name)
        last = device.read()
        assert (last.code, last.number(Option.OBSERVE)) == (Code.NOT_FOUND, None)
        device.acknowledge(last)


class TestTheNewest:
    def test_it_is_looked_at_and_stays(self, queue, device):
        assert device.ask(Code.GET, f"/q/{queue.name}/last").values(Option.ETAG) == []
        queue.send_many([b"v1", b"v2"])
        answers = [device.ask(Code.GET, f"/q/{queue.name}/last") for _ in range(2)]
        assert [answer.payload for answer in answers] == [b"v2", b"v2"]
        assert answers[0].values(Option.ETAG) == answers[1].values(Option.ETAG)
        assert queue.stats().waiting() == 2

    def test_of_several_stripes_it_is_the_one_sent_last(self, rd, device):
        wide = rd.create_queue("wide", stripes=4)
        for number in range(6):
            wide.send(b"v%d" % number)
            assert device.ask(Code.GET, "/q/wide/last").payload == b"v%d" % number

    def test_an_observer_hears_of_each_change_but_may_miss_some_between(self, queue, device):
        queue.send(b"v1")
        begun = device.ask(Code.GET, f"/q/{queue.name}/last", b"", OBSERVE)
        assert (begun.payload, begun.number(Option.OBSERVE)) == (b"v1", 0)
        queue.send(b"v2")
        told = device.read()
        assert told.payload == b"v2"
        queue.send(b"v3")
        queue.send(b"v4")
        device.acknowledge(told)
        told = device.read()
        assert told.payload == b"v4"
        device.acknowledge(told, Kind.RST)
        assert queue.stats().waiting() == 4


class TestBlocks:
    BODY = bytes(range(256)) * 12

    def test_a_body_goes_up_in_blocks(self, queue, device):
        for number in range(6):
            block = Block(number, number < 5, 5)
            part = self.BODY[number * 512 : (number + 1) * 512]
            option = (Option.BLOCK1, block.encode())
            answer = device.ask(Code.PUT, f"/q/{queue.name}", part, option)
            assert answer.code == (Code.CHANGED if number == 5 else Code.CONTINUE)
            assert answer.values(Option.BLOCK1) == [block.encode()]
        assert [m.body for m in queue.receive()] == [self.BODY]

    def test_a_body_comes_down_in_blocks_and_is_leased_once(self, queue, device):
        queue.send(self.BODY)
        body = b""
        while len(body) < len(self.BODY):
            block = (Option.BLOCK2, Block(len(body) // 256, False, 4).encode())
            body += device.ask(Code.GET, f"/q/{queue.name}", b"", block).payload
        assert body == self.BODY
        assert queue.stats().subscriptions["default"] == (0, 1, 0)

    def test_a_notification_of_a_large_message_is_its_first_block(self, queue, device):
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        queue.send(self.BODY)
        told = device.read()
        device.acknowledge(told)
        assert (told.payload, told.values(Option.BLOCK2)) == (
            self.BODY[:1024], [Block(0, True, 6).encode()],
        )  # fmt: skip
        second = (Option.BLOCK2, Block(1, False, 6).encode())
        answer = device.ask(Code.GET, f"/q/{queue.name}", b"", second, token=b"u")
        assert answer.payload == self.BODY[1024:2048]

    def test_a_large_message_is_done_when_all_of_it_was_fetched_and_then_comes_the_next(
        self, queue, device
    ):
        queue.send_many([b"A" * 2_500, b"B" * 2_500])
        device.ask(Code.GET, f"/q/{queue.name}", b"", OBSERVE)
        for letter, left in ((b"A", 2), (b"B", 1)):
            told = device.read()
            device.acknowledge(told)
            body = told.payload
            for number in (1, 2):
                assert not device.heard()
                assert sum(queue.stats().subscriptions["default"]) == left
                block = (Option.BLOCK2, Block(number, False, 6).encode())
                body += device.ask(Code.GET, f"/q/{queue.name}", b"", block, token=b"u").payload
            assert body == letter * 2_500
        wait_for(lambda: sum(queue.stats().subscriptions["default"]) == 0, "all are done")

    def test_a_large_message_that_is_not_fetched_comes_again(self, queue, device):
        queue.send(b"A" * 2_500)
        device.ask(Code.GET, f"/q/{queue.name}?lease_ms=100", b"", OBSERVE)
        for _ in range(2):
            told = device.read()
            assert told.payload == b"A" * 1_024
            device.acknowledge(told)
        assert sum(queue.stats().subscriptions["default"]) == 1

    def test_a_block_of_nothing_is_refused(self, queue, device):
        later = (Option.BLOCK2, Block(3, False, 6).encode())
        assert device.ask(Code.GET, f"/q/{queue.name}", b"", later).code == Code.INCOMPLETE


class TestDiscovery:
    @pytest.mark.parametrize("path", ["/.well-known/core", "/q"])
    def test_queues_are_listed(self, queue, device, path):
        answer = device.ask(Code.GET, f"{path}?href=/q/{queue.name}*")
        assert answer.number(Option.CONTENT_FORMAT) == 40
        assert answer.payload.decode() == (
            f'</q/{queue.name}>;rt="ringdove.queue";obs,'
            f'</q/{queue.name}/last>;rt="ringdove.last";obs'
        )

    def test_what_nobody_has_is_not_found(self, device):
        assert device.ask(Code.GET, "/.well-known/core?rt=lamp").payload == b""


def test_two_devices_share_a_queue(queue, port, device):
    queue.send_many([b"1", b"2"])
    with Device(port) as other:
        got = {one.ask(Code.GET, f"/q/{queue.name}").payload for one in (device, other)}
    assert got == {b"1", b"2"}

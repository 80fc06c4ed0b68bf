"""What both versions promise: connections, sessions, subscriptions, messages, wills."""

import pytest

import ringdove
from mqtt.wire import Wire
from ringdove.errors import StoreUnavailable
from ringdove.frontends.mqtt.session import STRIPE_SETTINGS
from ringdove.pending import Pending
from ringdove.protocol.mqtt import packets as p
from ringdove.protocol.mqtt.codec import encode
from ringdove.protocol.mqtt.packets import V5, Reason
from server.running import wait_for

LASTING = {"clean": False, "properties": {"session_expiry_interval": 3600}}


def test_messages_of_each_quality_arrive_and_are_in_the_queue(client, rd, fresh):
    wire = client()
    assert wire.subscribe(fresh) == [2]
    for qos in (0, 1, 2):
        wire.publish(fresh, b"qos %d" % qos, qos)
    assert sorted(wire.messages(3)) == [(fresh, b"qos %d" % qos, qos) for qos in (0, 1, 2)]
    queue = rd.queue(fresh)
    assert sorted(m.body for m in queue.receive(max=10)) == [b"qos 0", b"qos 1", b"qos 2"]


def test_a_publish_is_acknowledged_after_it_is_in_the_queue(client, rd, fresh):
    wire = client()
    for number in range(20):
        wire.publish(fresh, b"%d" % number, 1)
        assert rd.queue(fresh).stats().waiting() == number + 1


def test_pipelined_publishes_are_acknowledged_in_their_order(client, fresh):
    wire = client()
    wire.send(*(p.Publish(fresh, b"x", 1, number) for number in range(1, 101)))
    assert [wire.expect(p.PubAck).packet_id for _ in range(100)] == list(range(1, 101))


def test_packets_right_behind_connect_wait_for_its_answer(server, version, fresh):
    with Wire(server.server.mqtt_port, version) as wire:
        wire.send(p.Connect("", version), p.Publish(fresh, b"early", 1, 7))
        assert wire.expect(p.ConnAck).reason == 0
        assert wire.expect(p.PubAck).packet_id == 7


def test_a_second_connect_ends_the_connection(client, version):
    wire = client()
    wire.send(p.Connect("", version))
    last = wire.closed()
    assert last is None if version != V5 else last.reason == Reason.PROTOCOL_ERROR


def test_another_protocol_name_or_version_is_refused(server):
    for bad in (
        b"\x10\x0a\x00\x02hj\x04\x02\x00\x00\x00\x00",
        b"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00",
    ):
        with Wire(server.server.mqtt_port, p.V311) as wire:
            wire.socket.sendall(bad)
            last = wire.closed()
            assert last is None or last.reason == Reason.UNSUPPORTED_VERSION


def test_what_does_not_begin_with_connect_is_dropped(server, version):
    with Wire(server.server.mqtt_port, version) as wire:
        wire.send(p.PingReq())
        assert wire.closed() is None


def test_malformed_bytes_end_the_connection_with_a_reason(client, version):
    wire = client()
    wire.socket.sendall(b"\x36\x05\x00\x01a\x00\x01")
    last = wire.closed()
    assert last is None if version != V5 else last.reason == Reason.MALFORMED_PACKET


@pytest.mark.parametrize("topic", ["a/+", "#", ""])
def test_a_topic_with_wildcards_cannot_be_published_to(client, version, topic):
    wire = client()
    wire.send(p.Publish(topic, b"x", 1, 1))
    last = wire.closed()
    assert last is None if version != V5 else last.reason == Reason.TOPIC_NAME_INVALID


def test_a_client_without_a_name_gets_one(server, version):
    with Wire(server.server.mqtt_port, version) as wire:
        answer = wire.connect("")
        assert answer.reason == 0
        if version == V5:
            assert answer.properties["assigned_client_identifier"].startswith("auto-")


def test_retained_messages_come_to_new_subscribers_until_they_are_cleared(client, fresh):
    publisher = client()
    for qos in (0, 1, 2):
        publisher.publish(f"{fresh}/{qos}", b"kept", qos, retain=True)
    publisher.publish(f"{fresh}/1", b"newer", 1, retain=True)
    wire = client()
    wire.subscribe(f"{fresh}/+")
    found = [wire.message() for _ in range(3)]
    assert sorted((one.topic, one.payload, one.qos) for one in found) == [
        (f"{fresh}/0", b"kept", 0), (f"{fresh}/1", b"newer", 1), (f"{fresh}/2", b"kept", 2),
    ]  # fmt: skip
    assert all(one.retain for one in found)
    for qos in (0, 1, 2):
        publisher.publish(f"{fresh}/{qos}", b"", qos, retain=True)
    publisher.publish("flush", b"", 1)
    late = client()
    late.subscribe(f"{fresh}/#")
    assert late.nothing_more()


def test_a_message_is_not_marked_as_retained_for_those_who_were_there(client, fresh):
    wire = client()
    wire.subscribe(fresh)
    wire.publish(fresh, b"x", 1, retain=True)
    assert wire.message().retain is False


def test_messages_wait_for_a_client_that_is_away(client, server, version, fresh):
    away = client(fresh, **LASTING)
    away.subscribe(f"{fresh}/+")
    away.disconnect()
    publisher = client()
    for qos in (0, 1, 2):
        publisher.publish(f"{fresh}/{qos}", b"while away", qos)
    with Wire(server.server.mqtt_port, version) as back:
        assert back.connect(fresh, **LASTING).session_present
        assert back.messages(2) == [(f"{fresh}/{q}", b"while away", q) for q in (1, 2)]
        assert back.nothing_more()


def test_a_clean_start_forgets_what_was(client, fresh):
    first = client(fresh, **LASTING)
    first.subscribe(fresh)
    first.disconnect()
    client().publish(fresh, b"lost", 1)
    second = client(fresh)
    assert second.nothing_more()
    second.publish(fresh, b"nobody", 1)
    assert second.nothing_more()


def test_overlapping_subscriptions_give_one_message_of_the_best_quality(client, fresh):
    wire = client()
    wire.subscribe(p.Filter(f"{fresh}/#", 2), p.Filter(f"{fresh}/+", 1))
    wire.publish(f"{fresh}/a", b"once", 2)
    assert wire.messages(1) == [(f"{fresh}/a", b"once", 2)]
    assert wire.nothing_more()


def test_a_subscription_lowers_the_quality(client, fresh):
    wire = client()
    assert wire.subscribe(fresh, qos=0) == [0]
    wire.publish(fresh, b"x", 2)
    assert wire.messages(1) == [(fresh, b"x", 0)]


def test_wildcards_do_not_match_topics_of_the_server(client, fresh):
    wire = client()
    wire.subscribe("#", "+/broker/uptime")
    while not wire.nothing_more():
        wire.found.clear()
    wire.publish(f"${fresh}", b"", 1)
    assert wire.nothing_more()
    wire.subscribe("$SYS/broker/uptime")
    assert wire.message().topic == "$SYS/broker/uptime"


def test_unsubscribing_ends_it(client, version, fresh):
    wire = client()
    wire.subscribe(f"{fresh}/a", f"{fresh}/b")
    reasons = wire.unsubscribe(f"{fresh}/a", f"{fresh}/never")
    assert reasons == ([0, Reason.NO_SUBSCRIPTION_EXISTED] if version == V5 else [])
    wire.publish(f"{fresh}/a", b"no", 1)
    wire.publish(f"{fresh}/b", b"yes", 1)
    assert wire.messages(1) == [(f"{fresh}/b", b"yes", 1)]


def test_a_bad_filter_is_refused_and_the_others_are_not(client, version, fresh):
    wire = client()
    refused = Reason.TOPIC_FILTER_INVALID if version == V5 else 0x80
    assert wire.subscribe(f"{fresh}/#/x", fresh, "$share/x", qos=1) == [refused, 1, refused]


def test_what_was_not_acknowledged_comes_again_after_a_reconnect(client, fresh):
    wire = client(fresh, **LASTING)
    wire.subscribe(f"{fresh}/#")
    publisher = client()
    publisher.publish(f"{fresh}/1", b"one", 1)
    publisher.publish(f"{fresh}/2", b"two", 2)
    first = {one.topic: one for one in (wire.expect(p.Publish), wire.expect(p.Publish))}
    wire.drop()
    back = client(fresh, **LASTING)
    again = {one.topic: one for one in (back.message(), back.message())}
    assert {t: m.packet_id for t, m in again.items()} == {t: m.packet_id for t, m in first.items()}
    assert all(message.dup for message in again.values())
    assert not any(message.dup for message in first.values())
    assert back.nothing_more()


def test_a_release_is_repeated_after_a_reconnect_and_the_message_is_not(client, fresh):
    wire = client(fresh, **LASTING)
    wire.subscribe(fresh)
    client().publish(fresh, b"once", 2)
    packet_id = wire.expect(p.Publish).packet_id
    wire.send(p.PubRec(packet_id))
    wire.expect(p.PubRel)
    wire.drop()
    back = client(fresh, **LASTING)
    assert back.expect(p.PubRel).packet_id == packet_id
    back.send(p.PubComp(packet_id))
    assert back.nothing_more()
    back.drop()
    last = client(fresh, **LASTING)
    assert last.nothing_more()
    assert last.found == []


def test_a_message_of_quality_2_that_is_repeated_is_stored_once(client, rd, fresh):
    wire = client(fresh, **LASTING)
    wire.send(p.Publish(fresh, b"once", 2, 5))
    wire.expect(p.PubRec)
    wire.send(p.Publish(fresh, b"once", 2, 5, dup=True))
    wire.expect(p.PubRec)
    wire.drop()
    back = client(fresh, **LASTING)
    back.send(p.Publish(fresh, b"once", 2, 5, dup=True))
    back.expect(p.PubRec)
    back.send(p.PubRel(5))
    assert back.expect(p.PubComp).reason == 0
    back.send(p.Publish(fresh, b"another", 2, 5))
    back.expect(p.PubRec)
    assert sorted(m.body for m in rd.queue(fresh).receive(max=10)) == [b"another", b"once"]


def test_a_connection_that_ends_while_a_message_is_stored_leaves_its_identifier_usable(
    client, version, rd, fresh
):
    for number in range(3):
        wire = client(fresh, **LASTING)
        wire.socket.sendall(encode(p.Publish(fresh, b"%d" % number, 2, 5), version) + b"\0\0")
        wire.closed()
        back = client(fresh, **LASTING)
        back.send(p.Publish(fresh, b"%d" % number, 2, 5, dup=True))
        back.expect(p.PubRec)
        back.send(p.PubRel(5))
        back.expect(p.PubComp)
        back.drop()
    assert sorted(int(m.body) for m in rd.queue(fresh).receive(max=100)) == list(range(3))


def test_a_will_is_published_when_the_client_vanishes_and_not_when_it_says_goodbye(client, fresh):
    watcher = client()
    watcher.subscribe(f"{fresh}/#")
    for number, leave in enumerate(("disconnect", "drop")):
        wire = client(f"{fresh}{number}", will=p.Will(f"{fresh}/{leave}", b"gone", 1))
        getattr(wire, leave)()
    assert watcher.messages(1) == [(f"{fresh}/drop", b"gone", 1)]
    assert watcher.nothing_more()


def test_a_retained_will_is_retained(client, fresh):
    client(fresh, will=p.Will(fresh, b"gone", 0, retain=True)).drop()
    watcher = client()

    def seen():
        watcher.subscribe(fresh)
        return not watcher.nothing_more()

    wait_for(seen, "the retained will")
    assert watcher.expect(p.Publish).payload == b"gone"


def test_silence_beyond_the_keep_alive_time_ends_the_connection(client, version, fresh):
    watcher = client()
    watcher.subscribe(fresh)
    wire = client(will=p.Will(fresh, b"asleep"), keep_alive_s=1)
    last = wire.closed()
    assert last is None if version != V5 else last.reason == Reason.KEEP_ALIVE_TIMEOUT
    assert watcher.messages(1) == [(fresh, b"asleep", 0)]


def test_a_client_that_connects_again_takes_its_session_over(client, version, fresh):
    first = client(fresh, **LASTING)
    first.subscribe(fresh)
    second = client(fresh, **LASTING)
    last = first.closed()
    assert last is None if version != V5 else last.reason == Reason.SESSION_TAKEN_OVER
    second.publish(fresh, b"still subscribed", 1)
    assert second.messages(1) == [(fresh, b"still subscribed", 1)]


def test_members_of_a_shared_subscription_share_the_messages(client, fresh):
    members = [client(), client()]
    for member in members:
        member.subscribe(f"$share/group/{fresh}", qos=1)
    everybody = client()
    everybody.subscribe(fresh, qos=1)
    publisher = client()
    for number in range(10):
        publisher.publish(fresh, b"%d" % number, 1)
    assert len(everybody.messages(10)) == 10
    shares = [member.messages(5) for member in members]
    assert sorted(payload for share in shares for _, payload, _ in share) == [
        b"%d" % number for number in range(10)
    ]
    assert all(member.nothing_more() for member in members)


def test_many_subscribers_get_each_message(client, fresh):
    wires = [client() for _ in range(20)]
    for number, wire in enumerate(wires):
        wire.subscribe(fresh, qos=number % 3)
    client().publish(fresh, b"to all", 2)
    for number, wire in enumerate(wires):
        assert wire.messages(1) == [(fresh, b"to all", number % 3)]


def test_a_repetition_shares_the_fate_of_its_first_attempt(own_server, version, monkeypatch):
    server = own_server()
    gateway, broker = server.server._mqtt, server.server._broker
    send, first = broker.send, Pending()

    async def fail_once(queue, outgoing):
        if not first.done:
            await first
        return await send(queue, outgoing)

    monkeypatch.setattr(broker, "send", fail_once)
    packet = p.Publish("t", b"precious", 2, 5, dup=True)
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", **LASTING)
        wire.send(packet)
        wait_for(lambda: gateway.statistics.messages_in == 1, "the first attempt")
    with Wire(server.server.mqtt_port, version) as wire:
        assert wire.connect("device", **LASTING).session_present
        wire.send(packet)
        wait_for(lambda: gateway.statistics.messages_in == 2, "the second")
        server.loop.call_soon_threadsafe(first.fail, StoreUnavailable("The node is gone."))
        if version == V5:
            assert wire.expect(p.PubRec).reason >= 0x80
        else:
            assert wire.closed() is None
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", **LASTING)
        wire.send(packet)
        assert wire.expect(p.PubRec).reason == 0
    assert server.call(broker.queue_stats("t")).waiting() == 1


def test_a_message_that_is_stored_and_was_refused_does_not_stand_for_the_next(
    own_server, version, monkeypatch
):
    server = own_server()
    broker = server.server._broker
    send = broker.send

    async def store_and_fail(queue, outgoing):
        await broker.create_queue(queue, {})
        await send(queue, outgoing)
        monkeypatch.setattr(broker, "send", send)
        raise StoreUnavailable("Nobody knows what became of it.")

    monkeypatch.setattr(broker, "send", store_and_fail)
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", **LASTING)
        wire.send(p.Publish("t", b"first", 2, 9))
        if version == V5:
            assert wire.expect(p.PubRec).reason >= 0x80
            wire.send(p.Publish("t", b"second", 2, 9))
            assert wire.expect(p.PubRec).reason == 0
        else:
            assert wire.closed() is None
    with Wire(server.server.mqtt_port, version) as wire:
        wire.connect("device", **LASTING)
        if version != V5:
            wire.publish("other", b"its identifier is released meanwhile", 2)
            wire.send(p.Publish("t", b"first", 2, 9, dup=True))
            wire.expect(p.PubRec)
    with ringdove.connect(server.url) as rd:
        bodies = [message.body for message in rd.queue("t").receive(max=10)]
    assert bodies == [b"first", b"second"][: 2 if version == V5 else 1]


def test_a_session_that_does_not_last_ends_when_it_is_taken_over(client, fresh):
    client(fresh, clean=True).subscribe(fresh, qos=1)
    after = client(clean=True)
    with client(fresh, **LASTING) as taken:
        taken.subscribe(f"{fresh}/other", qos=1)
    with client(fresh, **LASTING) as wire:
        after.publish(fresh, b"nobody wants it", 1)
        after.publish(f"{fresh}/other", b"kept", 1)
        assert wire.messages(1) == [(f"{fresh}/other", b"kept", 1)]
        assert wire.nothing_more()


def test_subscribing_and_unsubscribing_at_once_is_done_in_order(server, client, fresh, monkeypatch):
    store, made = server.server._mqtt._store, []
    create = store.create
    monkeypatch.setattr(store, "create", lambda *args: made.append(args) or create(*args))
    wire, other = client(fresh, **LASTING), client()
    topics = [f"{fresh}/{number}" for number in range(3)]
    wire.send(
        *(p.Subscribe(number, [p.Filter(one, 1)]) for number, one in enumerate(topics, 1)),
        p.Unsubscribe(4, topics[:1]),
        p.Subscribe(5, [p.Filter(topics[0], 1)]),
        p.Unsubscribe(6, topics[1:2]),
    )
    for number in (1, 2, 3, 5):
        assert wire.expect(p.SubAck).packet_id == number
    assert [wire.expect(p.UnsubAck).packet_id for _ in range(2)] == [4, 6]
    for one in topics:
        other.publish(one, b"", 1)
    assert [one for one, _, _ in wire.messages(2)] == [topics[0], topics[2]]
    assert wire.nothing_more()
    assert len([args for args in made if args[1] == STRIPE_SETTINGS]) == 1


def test_a_session_ended_by_its_client_takes_nothing_along_of_the_next_one(own_server, monkeypatch):
    server = own_server()
    store = server.server._mqtt._store
    remove, held = store.remove, Pending()

    async def remove_later(key):
        if key.startswith("mqtt/flight/"):
            await held
        return await remove(key)

    monkeypatch.setattr(store, "remove", remove_later)
    with Wire(server.server.mqtt_port) as wire:
        wire.connect("device", **LASTING)
        wire.send(p.Disconnect(properties={"session_expiry_interval": 0}))
        wire.closed()
    with Wire(server.server.mqtt_port) as wire:
        wire.send(p.Connect("device", V5, False, properties=LASTING["properties"]))
        server.loop.call_soon_threadsafe(held.resolve, None)
        assert not wire.expect(p.ConnAck).session_present
        server.call(server.server._mqtt.turns.settled())
        assert server.call(store.get("mqtt/session/device")) is not None


def test_a_message_that_comes_while_nothing_more_is_found_is_sent_at_once(
    server, client, fresh, monkeypatch
):
    store = server.server._mqtt._store
    read, empty, go_on = store.read, Pending(), Pending()

    async def read_slowly(*args):
        found = await read(*args)
        if not found and not empty.done:
            empty.resolve(None)
            await go_on
        return found

    wire, other = client(fresh, **LASTING), client()
    wire.subscribe(fresh, qos=1)
    monkeypatch.setattr(store, "read", read_slowly)
    other.publish(fresh, b"one", 1)
    wait_for(lambda: empty.done, "nothing more is found")
    other.publish(fresh, b"two", 1)
    server.loop.call_soon_threadsafe(go_on.resolve, None)
    assert [wire.expect(p.Publish).payload for _ in range(2)] == [b"one", b"two"]

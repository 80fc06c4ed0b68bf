"""The library as an application uses it: queues, messages, batches, in this process and on a server."""

import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import ringdove
from ringdove import NewMessage, Start, errors, limits
from ringdove.pending import run


def bodies(batch):
    return [message.body for message in batch]


def test_every_public_name_is_there_and_listed():
    assert dir(ringdove) == sorted(ringdove.__all__)
    assert all(getattr(ringdove, name) for name in ringdove.__all__)


def test_what_is_sent_is_received_in_order_and_done_after_ack(rd, clock):
    queue = rd.create_queue("readings")
    queue.send_many([b"a", b"b", b"c"])
    batch = queue.receive(max=10)
    assert bodies(batch) == [b"a", b"b", b"c"]
    assert batch.bodies() == [b"a", b"b", b"c"]
    assert batch.ack() == 3
    clock.sleep_ms(60_000)
    assert not queue.receive()


def test_a_message_keeps_key_attributes_time_and_id(rd, clock):
    queue = rd.create_queue("readings")
    sent = queue.send("21.5", key="meter-7", attributes={"unit": "C", "raw": b"\x00", "n": 3})
    [message] = queue.receive()
    assert message.body == b"21.5"
    assert message.key == b"meter-7"
    assert message.attributes == {"unit": "C", "raw": b"\x00", "n": 3}
    assert message.sent_ms == clock.now_ms()
    assert message.receives == 1
    assert message.id == (sent.stripe, sent.offset)
    assert "21.5" in repr(message)


def test_unacknowledged_messages_come_back_with_a_higher_count(rd, clock):
    queue = rd.create_queue("readings", lease_ms=1000)
    queue.send(b"x")
    assert queue.receive()[0].receives == 1
    assert not queue.receive()
    clock.sleep_ms(1000)
    assert queue.receive()[0].receives == 2


def test_single_messages_of_a_batch_are_settled_on_their_own(rd, clock):
    queue = rd.create_queue("readings", lease_ms=1000)
    queue.send_many([b"0", b"1", b"2", b"3"])
    zero, one, two, three = queue.receive(max=4)
    two.ack()
    zero.release(delay_ms=0)
    three.extend(lease_ms=5000)
    assert bodies(queue.receive(max=4)) == [b"0"]
    clock.sleep_ms(1000)
    assert bodies(queue.receive(max=4)) == [b"0", b"1"]
    one.extend
    with pytest.raises(errors.ReceiptStale):
        one.ack()


def test_a_released_message_backs_off_longer_every_time(rd, clock):
    queue = rd.create_queue("readings", backoff_ms=100, backoff_ms_max=1000)
    queue.send(b"x")
    waits = []
    for _ in range(5):
        queue.receive()[0].release()
        waited = 0
        while queue.stats().subscriptions["default"][2] and not queue.receive(lease_ms=1):
            clock.sleep_ms(50)
            waited += 50
        waits.append(waited)
        clock.sleep_ms(1)
    assert waits == sorted(waits)
    assert waits[0] <= 100
    assert waits[-1] == 1000


def test_a_receipt_settles_a_message_from_elsewhere(rd):
    queue = rd.create_queue("readings")
    queue.send(b"x")
    receipt = queue.receive()[0].receipt
    rd.settle(receipt)
    assert queue.stats().messages == 0
    with pytest.raises(errors.InvalidArgument, match="no receipt"):
        rd.settle(receipt[:-1] + bytes([receipt[-1] ^ 1]))


def test_dead_letters_move_with_reason_and_come_back_on_redrive(rd, clock):
    queue = rd.create_queue("jobs", receives_max=2, lease_ms=1000)
    queue.send(b"poison", key="k", attributes={"a": 1})
    for _ in range(2):
        assert bodies(queue.receive()) == [b"poison"]
        clock.sleep_ms(1000)
    assert not queue.receive()
    letters = rd.queue("jobs.dead")
    [letter] = letters.peek()
    assert letter.attributes["ringdove.dead.queue"] == "jobs"
    assert "received 2 times" in letter.attributes["ringdove.dead.reason"]
    assert letter.attributes["a"] == 1
    assert letters.redrive() == 1
    [message] = queue.receive()
    assert (message.body, message.key, message.attributes) == (b"poison", b"k", {"a": 1})
    assert message.receives == 1


def test_a_dead_letter_that_cannot_be_moved_keeps_nobody_from_the_rest(rd, clock):
    letters = rd.create_queue("letters", body_bytes_max=100)
    queue = rd.create_queue("jobs", receives_max=1, dead_letter="letters", lease_ms=1000)
    queue.send(b"x" * 101)
    assert queue.receive()
    for number in range(3):
        queue.send(b"%d" % number)
        clock.sleep_ms(1000)
        [message] = queue.receive(max=10)
        assert message.body == b"%d" % number
        message.ack()
    letters.configure(body_bytes_max=1000)
    clock.sleep_ms(1000)
    assert not queue.receive()
    assert bodies(letters.peek()) == [b"x" * 101]


def test_a_dead_letter_queue_that_takes_nothing_is_asked_once(rd, clock, caplog):
    dead = rd.create_queue("dead", bytes_max=1_000, body_bytes_max=100)
    with suppress(errors.QueueFull):
        while True:
            dead.send(bytes(100))
    queue = rd.create_queue("q", receives_max=1, dead_letter="dead", lease_ms=1_000)
    for number in range(3):
        queue.send(b"%d" % number)
    for _ in range(3):  # A run each.
        assert len(queue.receive(max=1)) == 1
    clock.sleep_ms(2_000)
    queue.send(b"fresh")
    caplog.clear()
    assert queue.receive(max=9).bodies() == [b"fresh"]
    assert [record.args[:2] for record in caplog.records] == [("q", "dead")]


def test_a_letter_that_has_an_attribute_of_ours_goes_back_like_others(rd):
    queue, dead = rd.create_queue("q"), rd.create_queue("dead")
    odd = {"ringdove.dead.own": b"\xff", "colour": "red"}
    dead.send(b"x", attributes=odd)
    assert dead.redrive("q") == 1
    [message] = queue.receive()
    assert (message.body, message.attributes) == (b"x", {"colour": "red"})


def test_a_dead_letter_may_have_as_many_attributes_as_a_message(rd, clock):
    queue = rd.create_queue("jobs", receives_max=1, lease_ms=1000)
    given = {f"a{number}": number for number in range(limits.ATTRIBUTES_MAX)}
    queue.send(b"poison", attributes=given)
    assert queue.receive()
    clock.sleep_ms(1000)
    assert not queue.receive()
    letters = rd.queue("jobs.dead")
    [letter] = letters.peek()
    assert letter.attributes["ringdove.dead.queue"] == "jobs"
    assert letters.redrive() == 1
    [message] = queue.receive()
    assert message.attributes == given


def test_a_redrive_that_fails_gives_back_what_it_has_not_moved(rd):
    home = rd.create_queue("small", bytes_max=1000, body_bytes_max=400)
    letters = rd.create_queue("letters")
    for number in range(5):
        letters.send(b"%d" % number * 400)
    with pytest.raises(errors.QueueFull):
        letters.redrive(home.name)
    moved, left = home.receive(max=9), letters.receive(max=9)
    assert 0 < len(moved) < 5
    assert len(moved) + len(left) == 5
    assert {message.receives for message in left} == {1}


def test_a_buried_message_goes_to_the_dead_letter_queue_at_once(rd):
    queue = rd.create_queue("jobs", dead_letter="graveyard")
    queue.send_many([b"good", b"bad"])
    good, bad = queue.receive(max=2)
    bad.bury("cannot parse")
    good.ack()
    [letter] = rd.queue("graveyard").peek()
    assert letter.body == b"bad"
    assert letter.attributes["ringdove.dead.reason"] == "cannot parse"
    assert queue.stats().messages == 0
    plain = rd.create_queue("plain")
    plain.send(b"x")
    with pytest.raises(errors.InvalidArgument, match="dead_letter"):
        plain.receive()[0].bury()


def test_higher_priorities_go_first_and_the_lowest_does_not_starve(rd):
    queue = rd.create_queue("jobs", priority=2)
    for number in range(100):
        queue.send(b"low %d" % number)
        queue.send(b"high %d" % number, priority=2)
    order = []
    for _ in range(60):
        batch = queue.receive()
        order += bodies(batch)
        batch.ack()
    high = sum(body.startswith(b"high") for body in order)
    assert high > 45
    assert high < 60
    with pytest.raises(errors.InvalidArgument, match="0 to 2"):
        queue.send(b"x", priority=3)


def test_key_order_locks_a_group_and_no_other(rd):
    queue = rd.create_queue("orders", order="key", stripes=3)
    for number in range(3):
        for key in ("a", "b"):
            queue.send(b"%s%d" % (key.encode(), number), key=key)
    first = queue.receive(max=1)
    other = queue.receive(max=10)
    assert {body[:1] for body in bodies(first)} != {body[:1] for body in bodies(other)}
    assert bodies(other) == sorted(bodies(other))
    assert not queue.receive(max=10)
    first.ack()
    rest = queue.receive(max=10)
    assert bodies(rest)[0] == bodies(first)[0][:1] + b"1"
    with pytest.raises(errors.InvalidArgument, match="needs a key"):
        queue.send(b"no key")


def test_strict_order_hands_out_one_lease_at_a_time(rd, clock):
    queue = rd.create_queue("log", order="strict", lease_ms=1000)
    queue.send_many([b"1", b"2", b"3"])
    first = queue.receive(max=2)
    assert not queue.receive(max=2)
    first.ack()
    assert bodies(queue.receive(max=2)) == [b"3"]


def test_a_message_id_is_stored_once_within_its_window(rd, clock):
    queue = rd.create_queue("orders", dedup_ms=1000)
    first = queue.send(b"x", id="order-1")
    again = queue.send(b"x", id="order-1")
    assert (again.duplicate, again.offset) == (True, first.offset)
    sent = queue.send_many([NewMessage(b"y", id="order-1"), NewMessage(b"z", id="order-2")])
    assert [s.duplicate for s in sent] == [True, False]
    clock.sleep_ms(1001)
    assert not queue.send(b"x", id="order-1").duplicate
    assert queue.stats().waiting() == 3


def test_delays_of_queue_and_message_are_kept(rd, clock):
    queue = rd.create_queue("later", delay_ms=1000)
    queue.send(b"queue delay")
    queue.send(b"own delay", delay_ms=100)
    assert not queue.receive(max=2)
    assert queue.stats().subscriptions["default"] == (0, 0, 2)
    clock.sleep_ms(100)
    assert bodies(queue.receive(max=2)) == [b"own delay"]
    clock.sleep_ms(900)
    assert bodies(queue.receive(max=2)) == [b"queue delay"]


def test_subscriptions_read_independently(rd):
    queue = rd.create_queue("events")
    queue.send(b"0")
    queue.subscribe("billing", "earliest")
    queue.subscribe("audit")
    queue.send(b"1")
    assert queue.subscriptions() == ("audit", "billing")
    assert bodies(queue.receive(max=9, subscription="billing")) == [b"0", b"1"]
    assert bodies(queue.receive(max=9, subscription="audit")) == [b"1"]
    with pytest.raises(errors.SubscriptionNotFound, match="audit, billing"):
        queue.receive()
    queue.unsubscribe("audit")
    with pytest.raises(errors.SubscriptionNotFound):
        queue.unsubscribe("audit")


def test_a_default_subscription_stays_for_messages_that_only_it_has(rd):
    queue = rd.create_queue("readings")
    queue.send(b"sent before")
    queue.subscribe("billing", "latest")
    assert queue.subscriptions() == ("billing", "default")
    assert bodies(queue.receive()) == [b"sent before"]


def test_a_used_default_subscription_is_not_taken_away(rd):
    queue = rd.create_queue("events")
    queue.send(b"0")
    queue.receive().ack()
    queue.subscribe("billing")
    assert queue.subscriptions() == ("billing", "default")


def test_blocks_are_read_by_messages_cut_and_by_bytes_whole(rd):
    queue = rd.create_queue("q")
    for first in (0, 4, 8):
        queue.send_many([b"%d" % number for number in range(first, first + 4)])
    [stripe] = queue.info().stripes()

    def read(*most):
        return [(b.base, b.count) for b in run(rd.backend.read(stripe, 1, *most))]

    whole = sum(block.nbytes for block in run(rd.backend.read(stripe, 1, 100))[:2])
    assert read(100) == [(1, 3), (4, 4), (8, 4)]
    assert read(5) == [(1, 3), (4, 2)]
    assert read(100, 1) == [(1, 3)]
    assert read(100, whole) == [(1, 3), (4, 4)]
    assert read(100, whole + 1) == read(100, limits.OFFSET_MAX) == read(100)


def test_replay_reads_done_messages_by_offset_and_time(rd, clock):
    queue = rd.create_queue("events", keep_done_ms=60_000)
    queue.send_many([b"0", b"1"])
    clock.sleep_ms(10)
    middle = clock.now_ms()
    queue.send_many([b"2", b"3"])
    queue.receive(max=4).ack()
    assert bodies(queue.replay()) == [b"0", b"1", b"2", b"3"]
    assert bodies(queue.replay(1)) == [b"1", b"2", b"3"]
    assert bodies(queue.replay(Start("time", middle))) == [b"2", b"3"]
    assert bodies(queue.replay("latest")) == []
    clock.sleep_ms(60_000)
    assert bodies(queue.replay()) == []
    with pytest.raises(errors.InvalidArgument, match="no start"):
        list(queue.replay("yesterday"))


def test_a_read_message_cannot_be_settled(rd):
    queue = rd.create_queue("events")
    queue.send(b"0")
    [message] = queue.peek()
    with pytest.raises(TypeError, match="only read"):
        message.ack()


def test_spread_picks_among_the_oldest(rd):
    queue = rd.create_queue("spread", spread=10)
    queue.send_many([b"%02d" % n for n in range(100)])
    picked = [queue.receive()[0].body for _ in range(30)]
    assert len(set(picked)) == 30
    assert picked != sorted(picked)
    assert max(abs(int(body) - at) for at, body in enumerate(picked)) < 30
    for spread in ("infinite", "auto"):
        other = rd.create_queue(f"spread-{spread}", spread=spread)
        other.send_many([b"%d" % n for n in range(50)])
        assert sorted(int(other.receive()[0].body) for _ in range(50)) == list(range(50))


def test_a_receive_rate_is_kept(rd, clock):
    queue = rd.create_queue("slow", receive_rate_max=10)
    queue.send_many([b"x"] * 100)
    assert len(queue.receive(max=100)) == 10
    assert not queue.receive(max=100)
    clock.sleep_ms(500)
    assert len(queue.receive(max=100)) == 5


def test_a_full_queue_refuses_and_says_so(rd):
    queue = rd.create_queue("small", bytes_max=10_000, body_bytes_max=1000)
    for _ in range(16):
        queue.send(b"x" * 500)
    with pytest.raises(errors.QueueFull, match="10000"):
        queue.send_many([b"x" * 500] * 10)
    waiting = queue.stats().waiting()
    batch = queue.receive(max=1000)
    assert len(batch) == waiting
    batch.ack()
    queue.send(b"x" * 500)
    with pytest.raises(errors.MessageTooLarge, match="1001"):
        queue.send(b"x" * 1001)


def test_a_queue_may_drop_its_oldest_instead(rd):
    queue = rd.create_queue("ring", bytes_max=10_000, body_bytes_max=1000, when_full="drop-oldest")
    for number in range(100):
        queue.send(b"%03d" % number + b"x" * 500)
    numbers = [int(m.body[:3]) for m in queue.receive(max=1000)]
    assert numbers[-1] == 99
    assert numbers == list(range(numbers[0], 100))
    assert queue.stats().nbytes <= 10_000


def test_retention_drops_what_nobody_took(rd, clock):
    queue = rd.create_queue("short", retention_ms=10_000)
    queue.send(b"old")
    clock.sleep_ms(6000)
    queue.send(b"new")
    clock.sleep_ms(5000)
    assert bodies(queue.receive(max=9)) == [b"new"]


def test_settings_change_and_are_refused_with_reasons(rd):
    queue = rd.create_queue("q")
    assert queue.configure(lease_ms=5).lease_ms == 5
    queue.send(b"x")
    assert queue.receive(max=1)[0].body == b"x"
    with pytest.raises(errors.SettingsRefused, match="durability"):
        queue.configure(durability="memory")
    with pytest.raises(errors.SettingsRefused, match="empty"):
        queue.configure(order="strict")
    queue.purge()
    assert queue.configure(order="strict").order == "strict"
    with pytest.raises(errors.SettingsRefused, match="forbids"):
        rd.create_queue("r", order="key", priority=3)
    with pytest.raises(errors.QueueExists, match="order is 'strict'"):
        rd.create_queue("q")
    with pytest.raises(errors.SettingsRefused, match="lease_ms"):
        rd.create_queue("r", leese_ms=3)


def test_a_loose_queue_grows_stripes_while_in_use(rd):
    queue = rd.create_queue("q")
    queue.send_many([b"%d" % n for n in range(10)])
    queue.configure(stripes=4, priority=1)
    for number in range(10, 20):
        queue.send(b"%d" % number, priority=number % 2)
    got = []
    while batch := queue.receive(max=3):
        got += bodies(batch)
        batch.ack()
    assert sorted(map(int, got)) == list(range(20))


def test_a_missing_queue_names_the_nearest(rd):
    rd.create_queue("readings")
    with pytest.raises(errors.QueueNotFound, match="Did you mean 'readings'"):
        rd.queue("reading").send(b"x")
    with pytest.raises(errors.QueueNotFound):
        rd.delete_queue("nothing")
    rd.delete_queue("nothing", missing_ok=True)
    with pytest.raises(errors.InvalidArgument, match="no queue name"):
        rd.queue("no spaces")


def test_a_deleted_queue_is_gone_and_its_name_is_free(rd):
    queue = rd.create_queue("q")
    queue.send(b"old")
    rd.delete_queue("q")
    with pytest.raises(errors.QueueNotFound):
        queue.send(b"x")
    assert not rd.queues()
    fresh = rd.create_queue("q")
    assert not fresh.receive()


def test_bad_bodies_keys_and_attributes_are_refused(rd):
    queue = rd.create_queue("q")
    for bad in (3, None, object()):
        with pytest.raises(errors.InvalidArgument, match="bytes or text"):
            queue.send(bad)
    with pytest.raises(errors.InvalidArgument, match="names are text"):
        queue.send(b"x", attributes={1: 2})
    with pytest.raises(errors.InvalidArgument, match="'a'"):
        queue.send(b"x", attributes={"a": {}})
    with pytest.raises(errors.MessageTooLarge, match="key"):
        queue.send(b"x", key="k" * 2000)
    with pytest.raises(errors.RingdoveError):
        queue.send(b"x", attributes={"a": 2**70})
    assert queue.stats().messages == 0
    assert len(queue.send_many([])) == 0


def test_compressed_messages_arrive_as_they_were(rd):
    queue = rd.create_queue("q")
    sent = [b"reading %d " % n * 20 for n in range(500)]
    for compression in ("zstd", "lz4"):
        queue.send_many(sent, compression=compression)
    assert queue.stats().nbytes < 2 * sum(map(len, sent)) / 2
    assert queue.receive(max=7).bodies() == sent[:7]
    assert queue.receive(max=2000).bodies() == sent[7:] + sent


def test_a_waiting_receive_wakes_when_a_message_arrives(url):
    with ringdove.connect(url) as rd:
        queue = rd.create_queue("q")
        got = []
        receiver = threading.Thread(target=lambda: got.extend(bodies(queue.receive(wait=30))))
        receiver.start()
        queue.send(b"x")
        receiver.join(timeout=20)
        assert got == [b"x"]


def test_a_waiting_receive_wakes_when_a_lease_ends(url):
    with ringdove.connect(url) as rd:
        queue = rd.create_queue("q", lease_ms=50)
        queue.send(b"x")
        queue.receive()
        assert queue.receive(wait=30)[0].receives == 2


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("./data", "write 'file:./data'"),
        ("file:", "names no directory"),
        ("file://./data", "write 'file:./data'"),
        ("file://data/queues", "write 'file:data/queues'"),
        (Path("data"), "is no URL: write for example 'file:./data'"),
        ("flie:./data", "Did you mean 'file:'"),
        ("http://host", "this version connects"),
        ("http://:s3cret@host", "'http://host': this version connects"),
        ("ringdove://:s3cret@", "'ringdove://' names no server"),
        ("ringdove://:s3cret@host:door", "'ringdove://host:door': 'door' is no port"),
        ("tiers://:s3cret@host?x=1", r"'tiers://host\?x=1': after"),
        ("ringdove://", "names no server"),
        ("ringdove://host:door", "'door' is no port"),
        ("ringdove://host:\u00b2", "is no port"),
        ("ringdove+unix:", "names no socket"),
    ],
)
def test_a_wrong_url_says_what_is_right(wrong, match):
    with pytest.raises(errors.InvalidArgument, match=match):
        ringdove.connect(wrong)


def test_a_connection_is_shown_without_its_secret():
    connection = ringdove.aio.connect("ringdove://:s3cret@host")
    assert repr(connection) == "Connection('ringdove://host')"
    assert repr(connection.queue("q")) == "Queue('q' at 'ringdove://host')"
    with pytest.raises(errors.ConnectionClosed, match="to 'ringdove://host' is not open"):
        _ = connection.backend


def test_a_closed_connection_says_so(url):
    rd = ringdove.connect(url)
    queue = rd.create_queue("q")
    rd.close()
    rd.close()
    with pytest.raises(errors.ConnectionClosed):
        queue.send(b"x")


@pytest.mark.parametrize("rd", ["file", "server"], indirect=True)
@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda queue: queue.receive(max=1.5), "max is 1.5; it must be a whole number"),
        (lambda queue: queue.receive(max=None), "max is None; it must be a whole number"),
        (lambda queue: queue.receive(wait="5s"), "wait is '5s'; it must be seconds, or None"),
        (lambda queue: queue.receive(lease_ms=0.5), "lease_ms is 0.5; it must be a whole number"),
        (lambda queue: queue.receive(lease_ms=10**15), "it must be 1 to 316224000000"),
        (lambda queue: queue.receive(subscription=None), "subscription is None; it must be text"),
        (lambda queue: queue.receive(max=3).release("1s"), "delay_ms is '1s'"),
        (lambda queue: queue.receive()[0].extend(0), "lease_ms is 0; it must be 1 to"),
        (lambda queue: queue.receive()[0].bury(7), "reason is 7; it must be text"),
        (lambda queue: queue.peek("all"), "max is 'all'"),
        (lambda queue: queue.send(b"", delay_ms=1.5), "delay_ms is 1.5"),
        (lambda queue: queue.send(b"", priority="1"), "priority is '1'"),
        (lambda queue: queue.send(b"", attributes="a=b"), "write them by name"),
        (lambda queue: queue.producer(linger_ms=None), "linger_ms is None; it must be a number"),
        (lambda queue: queue.producer(sequence="7"), "sequence is '7'; it must be a whole number"),
        (lambda queue: queue.producer(name="p", sequence=-1), "sequence is -1; it must be 0 or"),
        (lambda queue: queue.consumer(lease_ms="1s"), "lease_ms is '1s'"),
        (lambda queue: queue.consumer(ack_linger_ms="1s"), "ack_linger_ms is '1s'"),
        (lambda queue: queue.stream(wait="1s"), "wait is '1s'; it must be seconds"),
        (lambda queue: queue.stream(position="start"), "This is no position of a stream."),
        (lambda queue: queue.redrive(max="all"), "max is 'all'"),
        (lambda queue: queue.redrive(7), "7 is no queue name"),
        (lambda queue: queue.send_many("abc"), "send_many takes several messages"),
        (lambda queue: queue.producer().send(b"", attributes=["a"]), "write them by name"),
        (lambda queue: list(queue.replay(-1)), "an offset of 0 or more"),
        (lambda queue: list(queue.replay(Start("time", 1.5))), "Start('time', MILLISECONDS)"),
        (lambda queue: queue.subscribe(7), "7 is no subscription name"),
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused_with_what_would_be_right(rd, use, told):
    queue = rd.create_queue("readings", lease_ms=1000)
    queue.send_many([b"a", b"b", b"c"])
    with pytest.raises(errors.InvalidArgument, match=re.escape(told)):
        use(queue)
    assert queue.stats().messages == 3
    queue.send(b"d")
    assert len(queue.receive(max=9)) > 0  # It goes on as before.

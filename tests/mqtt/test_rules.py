"""Rules from topics to queues and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringdove.core.settings import check_name
from ringdove.errors import InvalidArgument
from ringdove.protocol.mqtt.rules import Downlink, Place, Rules, queue_of, topic_of

topics = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=12
) | st.text("ab/.-_ é", min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("topic", "queue"),
    [
        ("readings", "readings"),
        ("meters/1/reading", "meters.1.reading"),
        ("plant-1", "plant--1"),
        ("a.b", "a-.b"),
        ("room 7", "room-207"),
        ("/TopicA", "_.TopicA"),
        ("_x", "__x"),
        ("é", "_-c3-a9"),
    ],
)
def test_a_topic_without_a_rule_is_the_queue_of_its_name(topic, queue):
    assert queue_of(topic) == queue
    assert Rules().place(topic) == Place(queue)
    assert topic_of(queue) == topic


@settings(deadline=None, max_examples=100)
@given(topics)
def test_there_is_a_way_back_from_every_queue_name(topic):
    queue = check_name(queue_of(topic))
    assert topic_of(queue) in (topic, None)
    assert topic_of(queue) == topic or len(topic.encode()) > 30


def test_long_topics_have_queues_of_their_own():
    one, other = queue_of("a" * 500), queue_of("a" * 499 + "b")
    assert one != other
    assert check_name(one) == one
    assert topic_of(one) is None


def test_the_first_rule_that_matches_decides():
    rules = Rules(
        [
            "meters/+/reading -> readings, key = segment 2",
            "meters/special/# -> special",
            "commands/+ -> commands.{2}",
            "chat/# -> none",
        ]
    )
    assert rules.place("meters/special/reading") == Place("readings", b"special")
    assert rules.place("meters/special/x") == Place("special")
    assert rules.place("commands/d 1") == Place("commands.d-201")
    assert rules.place("chat/a") == Place(None)
    assert rules.place("other") == Place("other")
    assert rules.place("$internal") == Place(None)


def test_a_queue_may_be_published_by_key():
    [downlink] = Rules(["configuration => devices/{key}/config, retain"]).downlinks
    assert downlink == Downlink("configuration", "devices/{key}/config", True)
    assert downlink.topic_for(b"7") == "devices/7/config"
    for key in (b"", b"\xff", b"a/#"):
        assert downlink.topic_for(key) is None
    [plain] = Rules(["news => news/all"]).downlinks
    assert plain.topic_for(b"") == "news/all"


@pytest.mark.parametrize(
    "text", ["", "a", "a/# -> ", "a+ -> q", "a -> bad/queue", "q => a/+", "bad queue => t", "a -> b, key = 2"]
)  # fmt: skip
def test_what_is_no_rule_is_refused(text):
    with pytest.raises(InvalidArgument):
        Rules([text])

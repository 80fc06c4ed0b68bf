"""Queues: creating, finding, listing, purging and deleting them."""

import pytest

from server.running import ServerThread
from sqs.clients import (
    ACCOUNT,
    NO_QUEUE,
    REGION,
    Queue,
    bare,
    fresh_name,
    later,
    no_queue_text,
    path_of,
    refused,
)
from sqs.conftest import maker

_NAME_RULE = "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
_FIFO = {"FifoQueue": "true"}
_NEIGHBOUR = "123456789012"


def _differs(attribute: str) -> str:
    return (
        f"A queue already exists with the same name and a different value for attribute {attribute}"
    )


# -- creating ---------------------------------------------------------------------------------------


def test_a_url_names_the_server_the_account_and_the_queue(sqs):
    name = fresh_name()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    assert url == f"{sqs.meta.endpoint_url}/{ACCOUNT}/{name}"
    assert bare(sqs.get_queue_url(QueueName=name)) == {"QueueUrl": url}


def test_an_arn_names_the_region_of_the_caller(queue):
    assert queue.arn == f"arn:aws:sqs:{REGION}:{ACCOUNT}:{queue.name}"


def test_creating_again_without_attributes_gives_the_same_queue(sqs, make):
    for queue in (make(), make(DelaySeconds="2", VisibilityTimeout="7")):
        assert sqs.create_queue(QueueName=queue.name)["QueueUrl"] == queue.url


@pytest.mark.parametrize("fifo", [False, True])
def test_creating_again_with_the_same_attributes_gives_the_same_queue(sqs, fifo):
    given = {"DelaySeconds": "2", "VisibilityTimeout": "7", **(_FIFO if fifo else {})}
    name = fresh_name(fifo=fifo)
    urls = {sqs.create_queue(QueueName=name, Attributes=given)["QueueUrl"] for _ in range(2)}
    assert len(urls) == 1


def test_creating_again_compares_only_what_is_sent(sqs, make):
    queue = make(DelaySeconds="2", VisibilityTimeout="7")
    again = sqs.create_queue(QueueName=queue.name, Attributes={"DelaySeconds": "2"})
    assert again["QueueUrl"] == queue.url


def test_creating_again_with_a_default_made_explicit_gives_the_same_queue(sqs, queue):
    again = sqs.create_queue(QueueName=queue.name, Attributes={"VisibilityTimeout": "30"})
    assert again["QueueUrl"] == queue.url


def test_creating_again_with_another_value_is_refused(sqs, make):
    queue = make(DelaySeconds="1")
    with refused("QueueAlreadyExists", _differs("DelaySeconds")):
        sqs.create_queue(QueueName=queue.name, Attributes={"DelaySeconds": "2"})


def test_creating_a_fifo_queue_again_with_another_value_is_refused(sqs, make):
    queue = make(fifo=True, ContentBasedDeduplication="true")
    given = {**_FIFO, "ContentBasedDeduplication": "false"}
    with refused("QueueAlreadyExists", _differs("ContentBasedDeduplication")):
        sqs.create_queue(QueueName=queue.name, Attributes=given)


def test_creating_again_compares_with_the_current_values(sqs, make):
    queue = make(DelaySeconds="1", VisibilityTimeout="7")
    queue.set(DelaySeconds="2")
    assert sqs.create_queue(QueueName=queue.name)["QueueUrl"] == queue.url
    now = {"DelaySeconds": "2", "VisibilityTimeout": "7"}
    assert sqs.create_queue(QueueName=queue.name, Attributes=now)["QueueUrl"] == queue.url
    with refused("QueueAlreadyExists", _differs("DelaySeconds")):
        sqs.create_queue(QueueName=queue.name, Attributes={"DelaySeconds": "1"})


def test_creating_again_does_not_look_at_messages(sqs, queue):
    queue.send_all("a", "b")
    queue.one()
    assert sqs.create_queue(QueueName=queue.name)["QueueUrl"] == queue.url
    assert queue.counts() == (1, 1, 0)


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_truth_is_told_in_any_case_and_read_in_lower_case(sqs, word):
    name = fresh_name(fifo=True)
    url = sqs.create_queue(
        QueueName=name, Attributes={"FifoQueue": word, "ContentBasedDeduplication": word}
    )["QueueUrl"]
    found = Queue(sqs, url).attributes("FifoQueue", "ContentBasedDeduplication")
    assert found == {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


@pytest.mark.parametrize(
    ("attribute", "value", "message"),
    [
        ("FifoQueue", "false", "Unknown Attribute FifoQueue."),
        ("ContentBasedDeduplication", "false", "Unknown Attribute ContentBasedDeduplication."),
        (
            "DeduplicationScope",
            "queue",
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        (
            "FifoThroughputLimit",
            "perQueue",
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    ],
)
def test_a_standard_queue_takes_no_attributes_of_fifo_queues(sqs, attribute, value, message):
    with refused("InvalidAttributeName", message):
        sqs.create_queue(QueueName=fresh_name(), Attributes={attribute: value})


def test_an_unknown_attribute_is_refused(sqs):
    with refused("InvalidAttributeName", "Unknown Attribute Colour."):
        sqs.create_queue(QueueName=fresh_name(), Attributes={"Colour": "blue"})


# -- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["a" * 81, "a" * 76 + ".fifo", "in.fo", "/my/test", "a b", "!@$", "sch\u00f6n", "a\n"],
    ids=["long", "long-fifo", "dot", "slash", "blank", "signs", "umlaut", "newline"],
)
def test_a_name_has_up_to_80_plain_characters(sqs, name):
    with refused("InvalidParameterValue", _NAME_RULE):
        attributes = _FIFO if name.endswith(".fifo") else {}
        sqs.create_queue(QueueName=name, Attributes=attributes)


@pytest.mark.parametrize("name", ["a" * 71, "a" * 66 + ".fifo"], ids=["standard", "fifo"])
def test_a_name_may_have_80_characters(sqs, name):
    name = f"{fresh_name()[-4:]}-{sqs.meta.service_model.metadata['protocol'][:4]}{name}"[:80]
    attributes = _FIFO if name.endswith(".fifo") else {}
    assert len(name) == 80
    assert sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"].endswith(name)


def test_an_empty_name_is_refused(sqs):
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName="")


def test_names_are_case_sensitive(sqs):
    name = fresh_name("Case")
    sqs.create_queue(QueueName=name)
    with refused(NO_QUEUE):
        sqs.get_queue_url(QueueName=name.lower())


def test_a_fifo_queue_needs_its_suffix(sqs):
    with refused("InvalidParameterValue"):
        sqs.create_queue(QueueName=fresh_name(), Attributes=_FIFO)


def test_the_suffix_needs_a_fifo_queue(sqs):
    with refused("InvalidParameterValue", _NAME_RULE):
        sqs.create_queue(QueueName=fresh_name(fifo=True))


# -- ways to name a queue -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        "{name}",
        "http://127.0.0.1/{account}/{name}",
        "http://elsewhere.example:12345/{account}/{name}",
        "https://sqs.eu-north-1.amazonaws.com/{account}/{name}",
        "https://queue.amazonaws.com/{account}/{name}",
        "http://localhost/queue/eu-north-1/{account}/{name}",
    ],
)
def test_a_queue_is_found_by_its_name_whatever_the_host_in_the_url(sqs, queue, form):
    alias = Queue(sqs, form.format(name=queue.name, account=ACCOUNT))
    assert alias.send("Using name instead of URL")["MD5OfMessageBody"] == (
        "86a83f96652a1bfad3891e7d523750cb"
    )
    alias.set(DelaySeconds="0", VisibilityTimeout="7")
    assert alias.attributes("VisibilityTimeout") == {"VisibilityTimeout": "7"}
    assert queue.bodies() == ["Using name instead of URL"]


@pytest.mark.parametrize(
    "url",
    [
        "http://whatever-incorrect-queue-address",
        "https://queue.amazonaws.com/000000000000/unknown",
        "http://localhost/000000000000/unknown",
        "unknown",
    ],
)
def test_a_url_of_no_queue_is_refused(sqs, url):
    with refused(NO_QUEUE, no_queue_text(sqs)):
        Queue(sqs, url).send()


_CALLS = {
    "get_queue_attributes": {"AttributeNames": ["All"]},
    "set_queue_attributes": {"Attributes": {"DelaySeconds": "1"}},
    "send_message": {"MessageBody": "x"},
    "send_message_batch": {"Entries": [{"Id": "1", "MessageBody": "x"}]},
    "receive_message": {},
    "delete_message": {"ReceiptHandle": "x"},
    "delete_message_batch": {"Entries": [{"Id": "1", "ReceiptHandle": "x"}]},
    "change_message_visibility": {"ReceiptHandle": "x", "VisibilityTimeout": 1},
    "change_message_visibility_batch": {
        "Entries": [{"Id": "1", "ReceiptHandle": "x", "VisibilityTimeout": 1}]
    },
    "purge_queue": {},
    "delete_queue": {},
    "list_queue_tags": {},
    "tag_queue": {"Tags": {"a": "b"}},
    "untag_queue": {"TagKeys": ["a"]},
    "list_dead_letter_source_queues": {},
    "add_permission": {"Label": "l", "AWSAccountIds": ["1" * 12], "Actions": ["SendMessage"]},
    "remove_permission": {"Label": "l"},
}


@pytest.mark.parametrize("method", _CALLS)
def test_no_action_works_on_a_queue_that_does_not_exist(sqs, method):
    with refused(NO_QUEUE, no_queue_text(sqs)):
        Queue(sqs, f"{sqs.meta.endpoint_url}/{ACCOUNT}/unknown").call(method, **_CALLS[method])


def test_the_url_of_no_queue_is_not_told(sqs):
    with refused(NO_QUEUE, no_queue_text(sqs)):
        sqs.get_queue_url(QueueName="unknown")


def test_boto3_has_a_class_for_a_queue_that_does_not_exist(json_sqs):
    with pytest.raises(json_sqs.exceptions.QueueDoesNotExist):
        json_sqs.get_queue_url(QueueName="unknown")


# -- accounts -----------------------------------------------------------------------------------------


@pytest.fixture(params=["json", "query"])
def neighbour(request, boto, server):
    """A client of another account: twelve digits are an account."""
    client = boto.make(request.param, server, _NEIGHBOUR)
    yield client
    client.close()


def test_an_account_has_queues_of_its_own(json_sqs, neighbour):
    name = fresh_name()
    own = Queue(json_sqs, json_sqs.create_queue(QueueName=name)["QueueUrl"])
    other = Queue(neighbour, neighbour.create_queue(QueueName=name)["QueueUrl"])
    assert path_of(other.url) == f"/{_NEIGHBOUR}/{name}"
    assert other.arn == f"arn:aws:sqs:{REGION}:{_NEIGHBOUR}:{name}"
    other.send("theirs")
    assert own.receive() == []
    assert other.url not in json_sqs.list_queues()["QueueUrls"]
    assert neighbour.list_queues(QueueNamePrefix=name)["QueueUrls"] == [other.url]


def test_a_queue_of_another_account_is_found_by_its_owner(json_sqs, neighbour):
    name = fresh_name()
    url = neighbour.create_queue(QueueName=name)["QueueUrl"]
    with refused(NO_QUEUE):
        json_sqs.get_queue_url(QueueName=name)
    found = json_sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=_NEIGHBOUR)
    assert bare(found) == {"QueueUrl": url}


def test_a_queue_of_another_account_is_used_by_its_url(json_sqs, neighbour):
    url = neighbour.create_queue(QueueName=fresh_name())["QueueUrl"]
    Queue(json_sqs, url).send("from next door")
    assert Queue(neighbour, url).bodies() == ["from next door"]
    Queue(json_sqs, url).call("delete_queue")
    with refused(NO_QUEUE):
        Queue(neighbour, url).receive()


# -- listing ----------------------------------------------------------------------------------------


def _some(sqs, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}-{number}" for number in range(count)]
    return [sqs.create_queue(QueueName=name)["QueueUrl"] for name in reversed(names)][::-1]


def test_queues_are_listed_by_the_beginning_of_their_names(sqs):
    prefix = fresh_name("list")
    urls = _some(sqs, prefix, 3)
    assert bare(sqs.list_queues(QueueNamePrefix=prefix)) == {"QueueUrls": urls}
    assert bare(sqs.list_queues(QueueNamePrefix=f"{prefix}-1")) == {"QueueUrls": urls[1:2]}
    assert set(urls) <= set(sqs.list_queues()["QueueUrls"])


def test_a_list_without_a_match_has_no_urls_at_all(sqs):
    assert bare(sqs.list_queues(QueueNamePrefix="nothing-begins-like-this")) == {}


def test_queues_are_listed_in_pages(sqs):
    prefix = fresh_name("pages")
    urls = _some(sqs, prefix, 10)
    first = bare(sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2))
    assert first["QueueUrls"] == urls[:2]
    rest = sqs.list_queues(QueueNamePrefix=prefix, MaxResults=10, NextToken=first["NextToken"])
    assert bare(rest) == {"QueueUrls": urls[2:]}


def test_a_list_that_fits_its_page_has_no_token(sqs):
    prefix = fresh_name("fits")
    urls = _some(sqs, prefix, 2)
    assert bare(sqs.list_queues(QueueNamePrefix=prefix, MaxResults=2)) == {"QueueUrls": urls}


def test_boto3_walks_through_the_pages(json_sqs):
    prefix = fresh_name("walk")
    urls = _some(json_sqs, prefix, 5)
    pages = json_sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=prefix, PaginationConfig={"PageSize": 2}
    )
    assert [url for page in pages for url in page["QueueUrls"]] == urls


@pytest.mark.parametrize("count", [-23, 1020])
def test_a_page_has_1_to_1000_queues(sqs, queue, count):
    message = (
        "Value for parameter MaxResults is invalid. "
        "Reason: MaxResults must be an integer between 1 and 1000."
    )
    with refused("InvalidParameterValue", message):
        sqs.list_queues(MaxResults=count)
    with refused("InvalidParameterValue", message):
        queue.call("list_dead_letter_source_queues", MaxResults=count)


def test_a_page_of_0_is_a_page_as_usual(sqs):
    prefix = fresh_name("zero")
    urls = _some(sqs, prefix, 2)
    assert bare(sqs.list_queues(QueueNamePrefix=prefix, MaxResults=0)) == {"QueueUrls": urls}


def test_a_token_that_was_never_given_is_refused(sqs, queue):
    for call in (
        lambda: sqs.list_queues(MaxResults=1, NextToken="made up"),
        lambda: queue.call("list_dead_letter_source_queues", NextToken="made up"),
    ):
        with refused("InvalidParameterValue", "Invalid or expired next token."):
            call()


# -- deleting and purging -----------------------------------------------------------------------------


def test_a_deleted_queue_is_gone_with_its_messages(sqs, queue):
    queue.send()
    assert queue.call("delete_queue") == {}
    assert queue.url not in sqs.list_queues().get("QueueUrls", [])
    for call in (
        queue.send,
        queue.receive,
        lambda: queue.attributes("All"),
        lambda: queue.call("delete_queue"),
        lambda: sqs.get_queue_url(QueueName=queue.name),
    ):
        with refused(NO_QUEUE, no_queue_text(sqs)):
            call()


def test_the_name_of_a_deleted_queue_is_free(sqs, queue):
    queue.send()
    queue.call("delete_queue")
    sqs.create_queue(QueueName=queue.name, Attributes={"DelaySeconds": "3"})
    assert queue.attribute("DelaySeconds") == "3"
    assert queue.counts() == (0, 0, 0)


def test_queues_are_separate(make):
    one, other = make(), make()
    one.send("one")
    other.send("other")
    assert one.bodies() == ["one"]
    assert other.bodies() == ["other"]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_purge_drops_everything(server, make, fifo):
    queue = make(fifo=fifo, VisibilityTimeout="5")
    queue.send_all("a/1", "b/1", "c/1")
    assert len(queue.receive(2)) == 2
    assert queue.call("purge_queue") == {}
    assert queue.receive() == []
    later(server, 6)
    assert queue.receive() == []
    assert queue.counts() == (0, 0, 0)


def test_a_purge_drops_delayed_messages(server, queue):
    queue.send("later", DelaySeconds=5)
    queue.call("purge_queue")
    later(server, 6)
    assert queue.receive() == []
    queue.send("after")
    assert queue.bodies() == ["after"]


def test_a_purge_forgets_duplicates(fifo):
    fifo.send("same", "g", MessageDeduplicationId="1")
    assert fifo.bodies() == ["same"]
    fifo.call("purge_queue")
    fifo.send("same", "g", MessageDeduplicationId="1")
    assert fifo.bodies() == ["same"]


def test_a_strict_server_purges_once_a_minute(tmp_path, boto):
    with ServerThread(tmp_path / "data", port=-1, memory=True, sqs_strict=True) as strict:
        for protocol in ("json", "query"):
            sqs = boto.make(protocol, strict)
            queue = maker(sqs)()
            message = f"Only one PurgeQueue operation on {queue.name} is allowed every 60 seconds."
            queue.call("purge_queue")
            with refused("AWS.SimpleQueueService.PurgeQueueInProgress", message):
                queue.call("purge_queue")
            later(strict, 61)
            queue.call("purge_queue")
            sqs.close()

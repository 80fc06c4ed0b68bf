"""A program as in the documentation of boto3 and SQS; it knows nothing of Ringdove."""

import json
import time

import boto3
from botocore.exceptions import ClientError

sqs = boto3.client("sqs")
resource = boto3.resource("sqs")


def standard() -> None:
    """Create, send, receive, delete; one by one and in batches, with attributes."""
    url = sqs.create_queue(
        QueueName="SQS_QUEUE_NAME",
        Attributes={"DelaySeconds": "0", "MessageRetentionPeriod": "86400"},
        tags={"team": "shop"},
    )["QueueUrl"]
    assert sqs.get_queue_url(QueueName="SQS_QUEUE_NAME")["QueueUrl"] == url
    assert url in sqs.list_queues()["QueueUrls"]
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"team": "shop"}
    sent = sqs.send_message(
        QueueUrl=url,
        DelaySeconds=0,
        MessageAttributes={
            "Title": {"DataType": "String", "StringValue": "The Whistler"},
            "Author": {"DataType": "String", "StringValue": "John Grisham"},
            "WeeksOn": {"DataType": "Number", "StringValue": "6"},
            "Cover": {"DataType": "Binary.png", "BinaryValue": bytes(range(256))},
        },
        MessageBody="Information about current NY Times fiction bestseller for week of 12/11/2016.",
    )
    # botocore compares MD5OfMessageBody and MD5OfBody itself, and raises if they are wrong.
    response = sqs.receive_message(
        QueueUrl=url,
        AttributeNames=["All"],
        MaxNumberOfMessages=1,
        MessageAttributeNames=["All"],
        VisibilityTimeout=30,
        WaitTimeSeconds=5,
    )
    [message] = response["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert message["MessageAttributes"]["Cover"]["BinaryValue"] == bytes(range(256))
    assert message["MessageAttributes"]["WeeksOn"] == {"DataType": "Number", "StringValue": "6"}
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"
    sqs.change_message_visibility(
        QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60
    )
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)
    try:
        sqs.get_queue_url(QueueName="SQS_QUEUE_NAME")
    except sqs.exceptions.QueueDoesNotExist as error:
        code = error.response["Error"]["Code"]
    else:
        raise AssertionError("a deleted queue has an URL")
    assert code == "AWS.SimpleQueueService.NonExistentQueue"


def resources() -> None:
    """The same through boto3's resources, in batches."""
    queue = resource.create_queue(QueueName="test", Attributes={"VisibilityTimeout": "30"})
    queue = resource.get_queue_by_name(QueueName="test")
    entries = [
        {
            "Id": str(number),
            "MessageBody": f"world {number}",
            "MessageAttributes": {"Author": {"StringValue": "Daniel", "DataType": "String"}},
        }
        for number in range(10)
    ]
    assert len(queue.send_messages(Entries=entries)["Successful"]) == 10
    bodies = set()
    while len(bodies) < 10:
        found = queue.receive_messages(
            MessageAttributeNames=["Author"], MaxNumberOfMessages=10, WaitTimeSeconds=5
        )
        for message in found:
            assert message.message_attributes["Author"]["StringValue"] == "Daniel"
            bodies.add(message.body)
        done = queue.delete_messages(
            Entries=[{"Id": str(i), "ReceiptHandle": m.receipt_handle} for i, m in enumerate(found)]
        )
        assert len(done["Successful"]) == len(found)
    assert bodies == {f"world {number}" for number in range(10)}
    queue.reload()
    assert queue.attributes["ApproximateNumberOfMessages"] == "0"
    assert queue.attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    queue.purge()
    queue.delete()


def dead_letters() -> None:
    """A dead-letter queue, and a move task that sends its messages back."""
    source = sqs.create_queue(QueueName="source")["QueueUrl"]
    dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
    arn = arn["Attributes"]["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": "2"}
    sqs.set_queue_attributes(
        QueueUrl=source, Attributes={"RedrivePolicy": json.dumps(policy), "VisibilityTimeout": "0"}
    )
    listed = sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"]
    assert listed == [source]
    sent = sqs.send_message(QueueUrl=source, MessageBody="poison")
    for count in ("1", "2"):
        [message] = sqs.receive_message(
            QueueUrl=source, WaitTimeSeconds=5, AttributeNames=["ApproximateReceiveCount"]
        )["Messages"]
        assert message["Attributes"]["ApproximateReceiveCount"] == count
        time.sleep(0.01)
    assert "Messages" not in sqs.receive_message(QueueUrl=source)
    [message] = sqs.receive_message(QueueUrl=dead, AttributeNames=["All"], VisibilityTimeout=0)[
        "Messages"
    ]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Attributes"]["DeadLetterQueueSourceArn"].endswith(":source")
    time.sleep(0.01)
    sqs.start_message_move_task(SourceArn=arn)
    for _ in range(500):
        [task] = sqs.list_message_move_tasks(SourceArn=arn)["Results"]
        if task["Status"] != "RUNNING":
            break
        time.sleep(0.02)
    assert task["Status"] == "COMPLETED"
    assert task["ApproximateNumberOfMessagesMoved"] == 1
    [message] = sqs.receive_message(QueueUrl=source, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "poison"
    sqs.delete_queue(QueueUrl=source)
    sqs.delete_queue(QueueUrl=dead)


def long_poll() -> None:
    """A receive that waits is answered when something comes, and not before."""
    url = sqs.create_queue(QueueName="long", Attributes={"ReceiveMessageWaitTimeSeconds": "20"})[
        "QueueUrl"
    ]
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    begun = time.monotonic()
    [message] = sqs.receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "later"
    assert 0.5 < time.monotonic() - begun < 15
    assert "Messages" not in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)
    sqs.delete_queue(QueueUrl=url)


def fifo() -> None:
    """Order within a group, and what was sent twice comes once."""
    url = sqs.create_queue(
        QueueName="orders.fifo",
        Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"},
    )["QueueUrl"]
    first = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
    again = sqs.send_message(QueueUrl=url, MessageBody="1", MessageGroupId="g")
    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    sqs.send_message(QueueUrl=url, MessageBody="2", MessageGroupId="g")
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["All"])
    assert [m["Body"] for m in found["Messages"]] == ["1", "2"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    try:
        sqs.send_message(QueueUrl=url, MessageBody="3")
    except ClientError as error:
        code = error.response["Error"]["Code"]
    else:
        raise AssertionError("a group is missing")
    assert code == "MissingParameter"
    sqs.delete_queue(QueueUrl=url)


for part in (standard, resources, dead_letters, long_poll, fifo):
    part()
    print(part.__name__)

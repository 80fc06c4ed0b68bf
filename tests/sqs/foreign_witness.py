"""Sends and receives with boto3, and prints what was acknowledged; the server may die meanwhile.

    python foreign_witness.py send NAME COUNT      prints the number of each message accepted
    python foreign_witness.py take NAME COUNT      prints number and id of each message deleted,
                                                   until it has seen so many different ones

boto3's own retries are all it has against a server that is gone.
"""

import sys

import boto3

verb, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName=name)["QueueUrl"]


def identified(number: int) -> dict[str, str]:
    """What a FIFO queue wants besides the body."""
    if not name.endswith(".fifo"):
        return {}
    return {"MessageGroupId": "g", "MessageDeduplicationId": str(number)}


def send() -> None:
    """One by one and in batches, turn by turn."""
    number = 0
    while number < count:
        if number % 20 < 10:
            sqs.send_message(QueueUrl=url, MessageBody=str(number), **identified(number))
            accepted = [number]
        else:
            numbers = range(number, min(number + 10, count))
            reply = sqs.send_message_batch(
                QueueUrl=url,
                Entries=[{"Id": str(n), "MessageBody": str(n), **identified(n)} for n in numbers],
            )
            accepted = [int(entry["Id"]) for entry in reply["Successful"]]
            assert accepted == list(numbers)
        print(*accepted, sep="\n", flush=True)
        number += len(accepted)


def take() -> None:
    """Receive, delete, tell."""
    seen = set()
    while len(seen) < count:
        reply = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=5, WaitTimeSeconds=1, VisibilityTimeout=5
        )
        for message in reply.get("Messages", ()):
            try:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
            except sqs.exceptions.ClientError as error:
                # A FIFO queue refuses a handle whose time is over; the message comes again.
                if "expired" not in str(error):
                    raise
                continue
            seen.add(message["Body"])
            print(message["Body"], message["MessageId"], flush=True)


{"send": send, "take": take}[verb]()

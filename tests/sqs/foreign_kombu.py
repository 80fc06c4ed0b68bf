"""A program with kombu alone: producers, consumers, simple queues; it knows nothing of Ringdove.

python foreign_kombu.py sqs://KEY:SECRET@HOST:PORT//
"""

import sys

from kombu import Connection, Exchange, Queue

OPTIONS = {
    "region": "eu-west-1",
    "is_secure": False,
    "visibility_timeout": 30,
    "wait_time_seconds": 1,
    "queue_name_prefix": "kombu-",
}


def simple(connection: Connection) -> None:
    """Put, get, acknowledge, requeue."""
    queue = connection.SimpleQueue("simple")
    for number in range(25):
        queue.put({"number": number})
    found = []
    first = queue.get(timeout=20)
    first.requeue()  # Comes back, perhaps behind others.
    while len(found) < 25:
        message = queue.get(timeout=20)
        found.append(message.payload["number"])
        message.ack()
    assert sorted(found) == list(range(25)), found
    queue.close()


def consumers(connection: Connection) -> None:
    """Two queues behind one exchange, a consumer for both; one message is rejected."""
    exchange = Exchange("media", "direct")
    queues = [Queue(name, exchange, routing_key=name) for name in ("video", "image")]
    producer = connection.Producer(serializer="json")
    for number in range(12):
        name = ("video", "image")[number % 2]
        producer.publish(
            {"name": f"{name}{number}"}, exchange=exchange, routing_key=name, declare=queues
        )
    found = set()

    def take(body: dict, message: object) -> None:
        found.add(body["name"])
        message.reject() if body["name"] == "video0" else message.ack()

    with connection.Consumer(queues, callbacks=[take]):
        while len(found) < 12:
            connection.drain_events(timeout=20)
    assert found == {f"{('video', 'image')[n % 2]}{n}" for n in range(12)}


def ordered(connection: Connection) -> None:
    """A FIFO queue, where kombu chooses group and deduplication id unless it is told."""
    queue = Queue("line.fifo", Exchange("line", "direct"), routing_key="line.fifo")
    producer = connection.Producer()
    for number in range(10):
        producer.publish(
            {"number": number},
            routing_key="line.fifo",
            exchange=queue.exchange,
            declare=[queue],
            properties={"MessageGroupId": "g", "MessageDeduplicationId": f"d{number}"},
        )
    found = []

    def take(body: dict, message: object) -> None:
        found.append(body["number"])
        message.ack()

    with connection.Consumer([queue], callbacks=[take]):
        while len(found) < 10:
            connection.drain_events(timeout=20)
    assert found == list(range(10)), found


for part in (simple, consumers, ordered):
    with Connection(sys.argv[1], transport_options=OPTIONS) as made:
        part(made)
    print(part.__name__)

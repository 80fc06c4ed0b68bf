"""A program with aioboto3: many at once on one event loop; it knows nothing of Ringdove."""

import asyncio

import aioboto3


async def main() -> None:
    """Eight receivers wait while eight senders send."""
    session = aioboto3.Session()
    async with session.client("sqs") as sqs:
        url = (await sqs.create_queue(QueueName="aio"))["QueueUrl"]
        seen: list[str] = []

        async def receive() -> None:
            while len(seen) < 80:
                reply = await sqs.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1
                )
                for message in reply.get("Messages", ()):
                    seen.append(message["Body"])
                    await sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

        async def send(who: int) -> None:
            for number in range(10):
                await sqs.send_message(QueueUrl=url, MessageBody=f"{who}-{number}")

        await asyncio.gather(*(receive() for _ in range(8)), *(send(who) for who in range(8)))
        assert sorted(seen) == sorted(f"{w}-{n}" for w in range(8) for n in range(10))
        counts = await sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])
        assert counts["Attributes"]["ApproximateNumberOfMessages"] == "0"
        await sqs.delete_queue(QueueUrl=url)
    async with session.resource("sqs") as resource:
        queue = await resource.create_queue(QueueName="aio-resource")
        await queue.send_message(MessageBody="hello")
        [message] = await queue.receive_messages(WaitTimeSeconds=5)
        assert await message.body == "hello"
        await message.delete()
        await queue.delete()


asyncio.run(main())
print("done")

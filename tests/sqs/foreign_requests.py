"""Requests as strangers may send them: nearly right ones, and anything at all.

A few examples for each test, always the same ones; RINGDOVE_EXAMPLES asks for more, and others.
"""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_EXAMPLES = os.environ.get("RINGDOVE_EXAMPLES")


def settings_for(examples: int, **options: int) -> settings:
    """How a test is run that usually takes so many examples."""
    return settings(
        max_examples=max(examples, int(_EXAMPLES or 0)),
        deadline=None,
        derandomize=_EXAMPLES is None,
        suppress_health_check=list(HealthCheck),
        **options,
    )


#: Names of members and fields as they are, and as nobody would have them.
MEMBERS = [
    "QueueUrl", "QueueName", "Attributes", "tags", "Tags", "TagKeys", "AttributeNames", "Entries",
    "MessageBody", "DelaySeconds", "MessageAttributes", "MessageSystemAttributes", "Id",
    "MessageGroupId", "MessageDeduplicationId", "ReceiptHandle", "VisibilityTimeout",
    "MaxNumberOfMessages", "WaitTimeSeconds", "MessageAttributeNames", "Label", "AWSAccountIds",
    "Actions", "SourceArn", "DestinationArn", "TaskHandle", "MaxResults", "NextToken",
    "QueueNamePrefix", "QueueOwnerAWSAccountId", "MaxNumberOfMessagesPerSecond", "DataType",
    "StringValue", "BinaryValue", "ReceiveRequestAttemptId", "MessageSystemAttributeNames",
]  # fmt: skip
FIELDS = [
    *MEMBERS, "Attribute", "AttributeName", "Tag", "TagKey", "MessageAttribute", "Value", "Name",
    "Key", "AWSAccountId", "ActionName", "MessageAttributeName", "MessageSystemAttribute",
    "SendMessageBatchRequestEntry", "DeleteMessageBatchRequestEntry",
    "ChangeMessageVisibilityBatchRequestEntry", "member", "entry", "1", "2", "01", "0", "-1", "x",
    "", "\u0661", "9" * 5000,
]  # fmt: skip

texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(MEMBERS) | texts, inner, max_size=6)
    ),
    max_leaves=15,
)
requests = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=6)
names = st.lists(st.sampled_from(FIELDS), min_size=1, max_size=7).map(".".join)
fields = st.dictionaries(names | texts, texts, max_size=12)

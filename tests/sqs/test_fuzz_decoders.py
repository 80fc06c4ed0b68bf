"""Whatever arrives, a decoder answers with what is asked or with an error of the API."""

import json
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ringdove.protocol import sigv4
from ringdove.protocol.sigv4 import SignatureRefused
from ringdove.protocol.sqs import attributes, policy, rules, wire
from ringdove.protocol.sqs.errors import SqsError
from ringdove.protocol.sqs.shapes import ACTIONS, Shape
from sqs.foreign_requests import fields, requests, settings_for, texts, values

EXAMPLES = settings_for(100)

actions = st.sampled_from(sorted(ACTIONS))


def allowed(call: Callable[[], Any], *refusals: type[Exception]) -> Any:
    """What a call answers; None when it refuses as it may."""
    with suppress(*refusals):
        return call()
    return None


def deep(opening: str, closing: str, depth: int = 100_000) -> str:
    return opening * depth + closing * depth


@EXAMPLES
@given(actions, requests.map(lambda found: json.dumps(found).encode()) | st.binary(max_size=60))
@example("SendMessage", b'{"MessageBody": "\\ud800"}')
@example("SendMessage", b'{"MessageBody": "\xff"}')
@example("SendMessage", b'{"DelaySeconds": 1e400}')
@example("SendMessage", b'{"DelaySeconds": ' + b"9" * 5000 + b"}")
@example("SendMessage", b'{"DelaySeconds": "' + b"9" * 5000 + b'"}')
@example("SendMessage", b'{"MessageAttributes": {"a": {"BinaryValue": "no base64!"}}}')
@example("SendMessage", b"null")
@example("SendMessage", deep("[", "]").encode())
@example("SendMessage", deep('{"a":', "1}").encode())
@example("SendMessage", b'{"MessageAttributes": ' + deep('{"a":', "}").encode() + b"}")
def test_a_json_body_is_a_request_or_is_refused(action, body):
    found = allowed(lambda: wire.from_json(action, body), SqsError)
    assert found is None or isinstance(found, Shape)


@EXAMPLES
@given(texts, st.binary(max_size=20))
def test_an_unknown_action_is_refused(action, body):
    if action not in ACTIONS:
        with pytest.raises(SqsError):
            wire.from_json(action, body)
        with pytest.raises(SqsError):
            wire.from_fields(action, {})


@EXAMPLES
@given(st.binary(max_size=200))
@example(b"&".join(b"a%d=" % n for n in range(2000)))
@example("ü=1".encode())
@example(b"%ff=%fe&a=%c3%28&=&&%00=%")
def test_a_query_string_is_fields_or_is_refused(data):
    found = allowed(lambda: wire.parse_fields(data), SqsError)
    assert found is None or all(isinstance(text, str) for pair in found.items() for text in pair)


@EXAMPLES
@given(actions, fields)
@example("ReceiveMessage", {"AttributeName.1": "a", "AttributeName.01.x": "b"})
@example("SetQueueAttributes", {"Attribute.1.Name": "a", "Attribute.01.Name": "b"})
@example("ReceiveMessage", {"AttributeName." + "9" * 5000: "a"})
@example("SendMessageBatch", {"SendMessageBatchRequestEntry.1." * 3000 + "Id": "a"})
@example("SendMessage", {"MessageAttribute.1.Value." * 3000 + "DataType": "a"})
@example("SendMessage", {"A": "1", "A.B": "2", "A.B.C": "3"})
@example("SendMessage", {"DelaySeconds": "9" * 5000})
@example(
    "SendMessage", {"MessageAttribute.1.Name": "a", "MessageAttribute.1.Value.BinaryValue": "!"}
)
def test_fields_are_a_request_or_are_refused(action, given_fields):
    found = allowed(lambda: wire.from_fields(action, given_fields), SqsError)
    assert found is None or isinstance(found, Shape)


@EXAMPLES
@given(actions, fields)
def test_fields_survive_the_way_through_a_form(action, given_fields):
    form = urllib.parse.urlencode(given_fields).encode()
    assert wire.parse_fields(form) == given_fields


documents = values.map(json.dumps) | texts | st.just("")
arns = st.sampled_from(["arn:aws:sqs:us-east-1:000000000000:q", "arn:", "x", ""]) | texts
redrives = st.fixed_dictionaries(
    {},
    optional={
        "deadLetterTargetArn": arns | values,
        "maxReceiveCount": st.integers() | texts | values,
        "redrivePermission": st.sampled_from(["allowAll", "byQueue", "denyAll"]) | values,
        "sourceQueueArns": st.lists(arns, max_size=12) | values,
    },
).map(json.dumps)


@EXAMPLES
@given(redrives | documents)
@example(
    '{"deadLetterTargetArn": "arn:aws:sqs:a:000000000000:q", "maxReceiveCount": "'
    + "9" * 5000
    + '"}'
)
@example('{"deadLetterTargetArn": "arn:aws:sqs:a:000000000000:q", "maxReceiveCount": "\u0661"}')
@example('{"deadLetterTargetArn": "arn:aws:sqs:a:000000000000:q", "maxReceiveCount": true}')
@example(deep("[", "]"))
@example("\ud800")
def test_a_redrive_policy_is_read_or_refused(text):
    found = allowed(lambda: attributes.parse_redrive(text), SqsError)
    assert found is None or 1 <= found.receives_max <= 1000
    allow = allowed(lambda: attributes.parse_redrive_allow(text), SqsError)
    assert allow is None or isinstance(allow.allows("arn:aws:sqs:us-east-1:000000000000:q"), bool)


@EXAMPLES
@given(
    st.dictionaries(st.sampled_from(attributes.SETTABLE) | texts, texts | documents, max_size=4),
    st.booleans(),
    st.booleans(),
)
@example({"DelaySeconds": "9" * 5000}, False, True)
@example({"DelaySeconds": "\u0661"}, False, True)
@example({"Policy": deep('{"a":', "1}")}, False, True)
@example({"Policy": "\ud800"}, False, True)
def test_attributes_are_plain_or_refused(given_attributes, fifo, creating):
    checked = allowed(
        lambda: attributes.check(given_attributes, {}, fifo=fifo, creating=creating), SqsError
    )
    if checked is not None:
        assert set(checked) == set(given_attributes)
        attributes.settings_of(checked)
        attributes.notes_of(checked)


statements = st.fixed_dictionaries(
    {},
    optional={
        "Sid": texts | values,
        "Effect": st.sampled_from(["Allow", "Deny"]) | values,
        "Principal": st.sampled_from(["*", {"AWS": "*"}, {"AWS": ["1"]}, {"Service": "x"}])
        | values,
        "NotPrincipal": values,
        "Action": st.sampled_from(["*", "SQS:*", "sqs:Send*", ["SQS:SendMessage"]]) | values,
        "NotAction": values,
        "Resource": st.sampled_from(["*", "arn:aws:sqs:*:*:*", "[", "arn:aws:sqs:a:b:["]) | values,
        "Condition": values,
    },
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "Version": values,
        "Id": values,
        "Statement": st.lists(statements, max_size=3) | values,
    },
)


@EXAMPLES
@given(policies | values.filter(lambda found: isinstance(found, dict)))
def test_any_policy_that_is_kept_can_be_used(document):
    text = json.dumps(document)
    if (
        allowed(lambda: attributes.check({"Policy": text}, {}, fifo=False, creating=True), SqsError)
        is None
    ):
        return
    arn = "arn:aws:sqs:us-east-1:000000000000:q"
    assert isinstance(policy.allows(text, arn, "111111111111", "SendMessage"), bool)
    added = allowed(lambda: policy.add(text, arn, "label", ["1"], ["SendMessage"]), SqsError)
    if added is not None:
        allowed(lambda: policy.remove(added, "label"), SqsError)
    allowed(lambda: policy.remove(text, "label"), SqsError)


@EXAMPLES
@given(
    st.lists(statements, max_size=3),
    st.sampled_from(["DeleteQueue", "SetQueueAttributes", "AddPermission", "ListQueueTags"]),
)
def test_no_policy_gives_away_what_is_the_owners(given_statements, action):
    arn = "arn:aws:sqs:us-east-1:000000000000:q"
    text = json.dumps({"Statement": given_statements})
    assert not policy.allows(text, arn, "111111111111", action)


@EXAMPLES
@given(
    st.dictionaries(
        st.sampled_from([b"authorization", b"x-amz-date", b"date", b"x-amz-security-token", b"host"]),
        st.binary(max_size=60)
        | st.sampled_from(
            [
                b"AWS4-HMAC-SHA256 Credential=a/20200101/r/sqs/aws4_request, SignedHeaders=host, "
                b"Signature=" + b"0" * 64,
                b"20200101T000000Z",
                b"20209999T999999Z",
                b"Wed, 01 Jan 2020 00:00:00 GMT",
                b"Wed, 99 Jan 2020 00:00:00 GMT",
            ]
        ),
        max_size=5,
    ),
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                b"X-Amz-Algorithm=AWS4-HMAC-SHA256", b"X-Amz-Date=20200101T000000Z",
                b"X-Amz-Credential=a%2F20200101%2Fr%2Fsqs%2Faws4_request",
                b"X-Amz-SignedHeaders=host", b"X-Amz-Signature=" + b"0" * 64, b"X-Amz-Expires=9",
                b"X-Amz-Date=20209999T999999Z", b"X-Amz-Expires=9999999", b"a=b",
            ]
        )
    ).map(b"&".join),
)  # fmt: skip
def test_a_signature_is_found_and_judged_or_refused(headers, query):
    def judge() -> None:
        claim = sigv4.find(headers, query)
        if claim is not None:
            sigv4.verify(
                claim, "secret", method="POST", raw_path=b"/", query=query, headers=headers,
                body=b"", now_s=1_577_836_800,
            )  # fmt: skip
            raise AssertionError("nobody knows the secret")

    allowed(judge, SignatureRefused)


@EXAMPLES
@given(st.text(max_size=300))
def test_names_and_texts_are_good_or_refused(text):
    for check in (
        rules.check_body,
        attributes.check_name,
        attributes.parse_arn,
        lambda found: rules.check_token(found, "MessageGroupId"),
    ):
        allowed(lambda: check(text), SqsError)


@EXAMPLES
@given(texts, values)
def test_errors_are_well_formed_whatever_they_quote(message, value):
    error = SqsError("InvalidParameterValueException", f"{message}{value}")
    told = json.loads(wire.error_to_json(error))["message"]
    assert told == error.message
    found = ET.fromstring(wire.error_to_xml(error, "id")).find("{*}Error/{*}Message")
    if found is not None and not rules.ILLEGAL.search(error.message):
        assert (found.text or "") == error.message

"""The two protocols of SQS on the wire: JSON 1.0, and the older query protocol with XML replies."""

from __future__ import annotations

import base64
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

import msgspec

from ringdove.protocol.sqs.errors import SqsError, invalid
from ringdove.protocol.sqs.rules import ILLEGAL
from ringdove.protocol.sqs.shapes import ACTIONS, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"

#: Fields of one query request: ten entries with ten attributes each, and some room.
_FIELDS_MAX = 1_000

#: Parts of a field's name: SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType.
_PARTS_MAX = 6

#: Digits of a number in a field's name.
_DIGITS_MAX = 6

_decoders = {name: msgspec.json.Decoder(shape, strict=False) for name, shape in ACTIONS.items()}


# -- JSON ---------------------------------------------------------------------------------------


def from_json(action: str, body: bytes) -> Shape:
    """What is asked, from the body of a JSON request."""
    decoder = _decoders.get(action)
    if decoder is None:
        raise SqsError("UnknownOperationException", f"There is no action {action!r}.")
    try:
        return decoder.decode(body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError("SerializationException", _unreadable(str(error))) from None


def _unreadable(text: str) -> str:
    """What the API says of a value of the wrong type."""
    for part, told in _WRONG_TYPES.items():
        if part in text:
            return told
    return f"The request cannot be read: {text}"


_WRONG_TYPES = {
    ", got `object`": "Start of structure or map found where not expected.",
    ", got `array`": "Start of list found where not expected",
    "Expected `int | null`, got `str`": "STRING_VALUE can not be converted to an Integer",
}


def to_json(reply: dict[str, Any] | None) -> bytes:
    """A reply as JSON."""
    return msgspec.json.encode(reply) if reply else b"{}" if reply is not None else b""


def error_to_json(error: SqsError) -> bytes:
    """An error as JSON."""
    return msgspec.json.encode(
        {"__type": f"com.amazonaws.sqs#{error.kind}", "message": error.message}
    )


# -- query --------------------------------------------------------------------------------------


def parse_fields(data: bytes) -> dict[str, str]:
    """The fields of a form or a query string."""
    try:
        pairs = parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError:
        raise SqsError(
            "MalformedQueryString", "The fields of the request cannot be read."
        ) from None
    return dict(pairs)


def from_fields(action: str, fields: dict[str, str]) -> Shape:
    """What is asked, from the fields of a query request."""
    shape = ACTIONS.get(action)
    if shape is None:
        raise invalid_action(action)
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        path = name.split(".")
        if len(path) <= _PARTS_MAX:
            _plant(tree, path, value)
    members = _members(action, tree)
    if action.endswith("Batch"):
        members.setdefault("Entries", [])
    if "AttributeNames" in members:
        members.pop("MessageSystemAttributeNames", None)  # The older list wins here.
    try:
        return msgspec.convert(members, shape, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(f"The request cannot be read: {error}") from None


def invalid_action(action: str) -> SqsError:
    """The action does not exist, or not where it was asked for."""
    return SqsError("InvalidAction", f"The action {action} is not valid for this endpoint.")


def _plant(tree: dict[str, Any], path: list[str], value: str) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree.setdefault(path[-1], value)


def _members(action: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Numbered fields as lists and maps, under the names of the JSON protocol."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name in _REPEATED and not value:
            continue  # How some clients write a list without anything in it.
        if name in _LISTS and isinstance(value, dict):
            found[_LISTS[name]] = [item for _, item in _numbered(value) if isinstance(item, str)]
        elif name in _MAPS and isinstance(value, dict):
            member, key, content = _MAPS[name]
            if name == "Tag" and action == "CreateQueue":
                member = "tags"
            found[member] = {
                str(item.get(key, "")): item.get(content, {} if "Message" in name else "")
                for _, item in _numbered(value) or [(1, value)]
                if isinstance(item, dict)
            }
        elif name == f"{action}RequestEntry" and isinstance(value, dict):
            found["Entries"] = [
                _members(action, item) for _, item in _numbered(value) if isinstance(item, dict)
            ]
        else:
            found[name] = value
    return found


def _numbered(items: dict[str, Any]) -> list[tuple[int, Any]]:
    found = [
        (int(number), item)
        for number, item in items.items()
        if number.isdecimal() and len(number) <= _DIGITS_MAX
    ]
    return sorted(found, key=itemgetter(0))


_LISTS = {
    "AttributeName": "AttributeNames",
    "MessageAttributeName": "MessageAttributeNames",
    "MessageSystemAttributeName": "MessageSystemAttributeNames",
    "TagKey": "TagKeys",
    "AWSAccountId": "AWSAccountIds",
    "ActionName": "Actions",
}

_MAPS = {
    "Attribute": ("Attributes", "Name", "Value"),
    "Tag": ("Tags", "Key", "Value"),
    "MessageAttribute": ("MessageAttributes", "Name", "Value"),
    "MessageSystemAttribute": ("MessageSystemAttributes", "Name", "Value"),
}

#: Members with several values, by their names in either protocol.
_REPEATED = {*_LISTS, *_LISTS.values(), *_MAPS, *(own[0] for own in _MAPS.values()), "Entries"}


# -- XML ----------------------------------------------------------------------------------------


def to_xml(action: str, reply: dict[str, Any] | None, request_id: str) -> bytes:
    """A reply as XML."""
    result = ""
    if reply is not None:
        content = "".join(_elements(action, reply))
        name = f"{action}Result"
        result = f"<{name}>{content}</{name}>" if content else f"<{name}/>"
    return (
        f'<?xml version="1.0"?><{action}Response xmlns="{NAMESPACE}">{result}'
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata>"
        f"</{action}Response>"
    ).encode()


def error_to_xml(error: SqsError, request_id: str) -> bytes:
    """An error as XML."""
    blame = "Sender" if error.sender else "Receiver"
    message = error.message
    if error.kind == "QueueDoesNotExist":
        message = "The specified queue does not exist for this wsdl version."
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{blame}</Type>'
        f"<Code>{error.legacy}</Code><Message>{_text(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    text = str(value)
    if not text.isprintable():
        text = ILLEGAL.sub("\ufffd", text)  # XML has no way to write them.
    return escape(text, {"\r": "&#13;", '"': "&quot;"})


def _elements(action: str, members: dict[str, Any]) -> Iterator[str]:
    for name, value in members.items():
        if isinstance(value, dict) and name in _MAP_ELEMENTS:
            element, key, content = _MAP_ELEMENTS[name]
            for own, item in value.items():
                inner = "".join(_elements(action, {key: own, content: item}))
                yield f"<{element}>{inner}</{element}>"
        elif isinstance(value, dict):
            yield f"<{name}>{''.join(_elements(action, value))}</{name}>"
        elif isinstance(value, list):
            element = _LIST_ELEMENTS.get(name) or f"{action}ResultEntry"
            for item in value:
                inner = "".join(_elements(action, item)) if isinstance(item, dict) else _text(item)
                yield f"<{element}>{inner}</{element}>"
        elif value is not None:
            yield f"<{name}>{_text(value)}</{name}>"


_MAP_ELEMENTS = {
    "Attributes": ("Attribute", "Name", "Value"),
    "MessageAttributes": ("MessageAttribute", "Name", "Value"),
    "Tags": ("Tag", "Key", "Value"),
}

_LIST_ELEMENTS = {
    "QueueUrls": "QueueUrl",
    "queueUrls": "QueueUrl",
    "Messages": "Message",
    "Failed": "BatchResultErrorEntry",
}


# -- query requests that ask for JSON -----------------------------------------------------------


def to_query_json(action: str, reply: dict[str, Any] | None, request_id: str) -> bytes:
    """A reply to a query request whose sender prefers JSON."""
    answer: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if reply is not None:
        answer = {f"{action}Result": _listed(reply), **answer}
    return msgspec.json.encode({f"{action}Response": answer})


def error_to_query_json(error: SqsError, request_id: str) -> bytes:
    """An error likewise."""
    blame = "Sender" if error.sender else "Receiver"
    content = {"Type": blame, "Code": error.legacy, "Message": error.message}
    return msgspec.json.encode({"Error": content, "RequestId": request_id})


def _listed(members: dict[str, Any]) -> dict[str, Any]:
    """Maps as lists of pairs, as this form has them."""
    found: dict[str, Any] = {}
    for name, value in members.items():
        if isinstance(value, dict) and name in _MAP_ELEMENTS:
            _, key, content = _MAP_ELEMENTS[name]
            found[name] = [{key: own, content: item} for own, item in value.items()]
        elif name == "Messages":
            found["messages"] = [_listed(item) for item in value]
        else:
            found[name] = value
    return found

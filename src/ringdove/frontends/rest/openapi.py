"""The OpenAPI 3.1 document, made from the table of routes and the shapes of their JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from ringdove import limits
from ringdove.frontends.rest import shapes
from ringdove.frontends.rest.problems import PROBLEM_JSON, Problem
from ringdove.frontends.rest.routes import JSON, Route
from ringdove.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ringdove.frontends.rest.routes import Handler

PATH = "/v1/openapi.json"

#: Refusals that every route may answer with.
_REFUSALS = (400, 401, 403, 405, 429, 500, 503)

_REASONS = {
    400: "The request cannot be read, or a value is not allowed",
    401: "Who asks is not known",
    403: "Who asks is not allowed to",
    404: "There is no such queue or subscription",
    405: "The path does not take the method",
    409: "The state of the queue or of a lease does not allow it",
    410: "The message is not stored any more",
    413: "A message is too large, or there are too many",
    415: "The body has a content type that is not taken",
    422: "The settings are refused",
    429: "The queue is full, or the caller asks too often",
    500: "The server failed",
    503: "The store cannot serve now",
    507: "The disk is full",
}

#: What a queue or subscription may be called.
NAME = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
    "minLength": 1,
    "maxLength": limits.NAME_CHARS_MAX,
}

_DESCRIPTION = """\
Queues and messages over HTTP. A message is sent, then received: that leases it for a time, and \
gives a receipt. Acknowledge it with the receipt when it is done, or it comes back."""


def route(handle: Handler) -> Route:
    """The route of the document itself, which everybody may read."""
    return Route("GET", PATH, handle, None, "This document", {200: dict[str, Any]})


def document(routes: Iterable[Route]) -> bytes:
    """The document, as JSON."""
    components = _components(routes)
    paths: dict[str, dict[str, Any]] = {}
    for each in routes:
        path = paths.setdefault(each.path, _path_item(each.path))
        path[each.method.lower()] = _operation(each)
    content = {
        "openapi": "3.1.0",
        "info": {
            "title": "Ringdove",
            "version": __version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _refusal(status) for status in _REASONS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "key": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"key": []}],
    }
    return msgspec.json.encode(content)


def _path_item(path: str) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": NAME} for name in names]
    return {"parameters": parameters} if parameters else {}


def _operation(each: Route) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": each.handle.__name__.lstrip("_"),
        "summary": each.summary,
        "responses": {
            **{str(status): _answer(kind) for status, kind in each.answers.items()},
            **{
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in sorted({*_REFUSALS, *each.refusals})
            },
        },
    }
    if parameters := _parameters(each.query):
        found["parameters"] = parameters
    if each.media is not None or each.body is not None:
        media = each.media or {JSON: each.body}
        found["requestBody"] = {
            "required": each.required,
            "content": {name: _media(kind) for name, kind in media.items()},
        }
    return found


def _parameters(query: type[msgspec.Struct]) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([query])
    parameters = []
    for name, schema in components[query.__name__]["properties"].items():
        description = schema.pop("description", "")
        parameters.append(
            {"name": name, "in": "query", "description": description, "schema": schema}
        )
    return parameters


def _media(kind: Any) -> dict[str, Any]:
    if kind is bytes:
        return {"schema": {}}
    return {"schema": _schema(kind)}


def _schema(kind: Any) -> dict[str, Any]:
    if isinstance(kind, tuple):
        return {"oneOf": [_schema(each) for each in kind]}
    [schema], _ = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    found: dict[str, Any] = schema
    return found


def _answer(kind: Any) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done"}
    of_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    description = (kind.__doc__ or "").partition("\n")[0].rstrip(".") if of_struct else "Done"
    return {"description": description, "content": {JSON: {"schema": _schema(kind)}}}


def _refusal(status: int) -> dict[str, Any]:
    schema = {"$ref": _REFERENCE.format(name=Problem.__name__)}
    return {"description": _REASONS[status], "content": {PROBLEM_JSON: {"schema": schema}}}


def _components(routes: Iterable[Route]) -> dict[str, Any]:
    kinds: list[Any] = [Problem]
    for each in routes:
        kinds += [kind for kind in each.answers.values() if kind is not None]
        for kind in (each.media or {JSON: each.body}).values():
            kinds += kind if isinstance(kind, tuple) else [kind]
    structs = [k for k in kinds if isinstance(k, type) and issubclass(k, msgspec.Struct)]
    _, components = msgspec.json.schema_components(
        list(dict.fromkeys(structs)), ref_template=_REFERENCE
    )
    found: dict[str, Any] = components
    # What a struct cannot say: a body is needed, in one of two forms, and is not null.
    message = found[shapes.NewMessage.__name__]
    message["properties"]["body"] = {
        "type": ["string", "number", "boolean", "object", "array"],
        "description": "Text is stored as text, any other value as its JSON.",
    }
    message["oneOf"] = [
        {"required": ["body"], "properties": {"body_base64": {"type": "null"}}},
        {
            "required": ["body_base64"],
            "properties": {"body_base64": {"type": "string"}},
            "not": {"required": ["body"]},
        },
    ]
    return found


_REFERENCE = "#/components/schemas/{name}"

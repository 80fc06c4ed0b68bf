"""The OpenAPI document is valid, served, and says what is really there."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from rest.caller import Caller, QueueCaller
from ringdove.frontends.rest import openapi
from ringdove.frontends.rest.api import ROUTES

DOCUMENT = json.loads(openapi.document(ROUTES))


def test_the_document_is_valid():
    OpenAPIV31SpecValidator(DOCUMENT).validate()


def test_the_document_is_served(rest: Caller):
    answer = rest.call("GET", "/openapi.json")
    assert (answer.status, answer.kind) == (200, "application/json")
    assert answer.json["openapi"].startswith("3.1")
    assert "/v1/openapi.json" in answer.json["paths"]
    OpenAPIV31SpecValidator(answer.json).validate()


def test_every_route_is_described_once():
    described = {
        (m.upper(), p) for p, item in DOCUMENT["paths"].items() for m in item if m != "parameters"
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [route.handle.__name__ for route in ROUTES]
    assert len(names) == len(set(names))


def test_every_route_is_in_the_manual():
    text = (Path(__file__).parents[2] / "docs" / "rest.md").read_text()
    for route in ROUTES:
        path = re.sub(r"{(\w+)}", lambda found: found[1].upper(), route.path)
        assert f"| {route.method} | `{path}` |" in text, route.path


def test_every_operation_says_what_it_takes_and_answers():
    for item in DOCUMENT["paths"].values():
        for method, operation in item.items():
            if method == "parameters":
                continue
            assert operation["summary"]
            assert {"400", "401", "403", "500", "503"} <= set(operation["responses"])
            for parameter in operation.get("parameters", ()):
                assert parameter["description"], parameter
                assert "type" in parameter["schema"]


def schema(name: str) -> dict[str, Any]:
    return {**DOCUMENT, "$ref": f"#/components/schemas/{name}"}


@pytest.mark.parametrize(
    ("message", "fits"),
    [
        ({"body": "a"}, True),
        ({"body": {"a": 1}, "key": None, "attributes": {"a": [1, {"base64": ""}]}}, True),
        ({"body_base64": ""}, True),
        ({"body": "a", "body_base64": None}, True),
        ({}, False),
        ({"body": None}, False),
        ({"body": "a", "body_base64": ""}, False),
        ({"body": "a", "other": 1}, False),
    ],
)
def test_the_schema_of_a_message_is_that_of_the_server(queue: QueueCaller, message, fits):
    validator = jsonschema.Draft202012Validator(schema("NewMessage"))
    assert validator.is_valid(message) == fits
    answer = queue.caller.call("POST", f"{queue.path}/messages", message)
    assert (answer.status == 201) == fits

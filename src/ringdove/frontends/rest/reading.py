"""What a request holds, read and checked: names, query and JSON, with refusals in plain words."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from ringdove.errors import InvalidArgument
from ringdove.frontends.rest.problems import MediaTypeUnsupported

if TYPE_CHECKING:
    from ringdove.frontends.exchange import HttpRequest

#: Parameters of one query; no route has so many.
_PARAMETERS_MAX = 32

#: What msgspec raises for bytes that are no JSON, or not what was wanted.
JSON_FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)

_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def segments(request: HttpRequest) -> list[str]:
    """The parts of the path, each decoded on its own: a slash may be part of a name."""
    try:
        return [unquote_to_bytes(part).decode() for part in request.raw_path.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise InvalidArgument("The path is no text: percent-encode it as UTF-8.") from None


def media_type(request: HttpRequest) -> str:
    """The content type without its parameters; empty when there is none."""
    encoding = request.header(b"content-encoding").strip().lower()
    if encoding not in ("", "identity"):
        raise MediaTypeUnsupported(
            f"Bodies with Content-Encoding {encoding[:40]!r} are not taken: send them plain."
        )
    return request.header(b"content-type").partition(";")[0].strip().lower()


def read_query(kind: type[msgspec.Struct], request: HttpRequest) -> Any:
    """The query as a struct; a parameter that is unknown, repeated or wrong is refused."""
    try:
        pairs = parse_qsl(
            request.query.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMETERS_MAX,
        )
    except ValueError as error:
        reason = str(error) if "fields" in str(error) else "it is no percent-encoded UTF-8"
        raise InvalidArgument(f"The query cannot be read: {reason}.") from None
    return read_pairs(kind, pairs)


def read_pairs(kind: type[msgspec.Struct], pairs: list[tuple[str, str]]) -> Any:
    """Likewise, of parameters that are decoded already."""
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgument(f"The query has {twice[:40]!r} more than once.")
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        what, place = _parts(error)
        value = f"{place} is {given[place][:40]!r}: " if place in given else ""
        raise InvalidArgument(f"{value}{_plain(what, kind, 'query parameter')}") from None


def read_json(kind: Any, data: bytes) -> Any:
    """JSON as a value of `kind`, or InvalidArgument saying what is wrong where."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        what, place = _parts(error)
        raise InvalidArgument(f"{place}: {_plain(what, kind, 'field')}".lstrip(": ")) from None
    except JSON_FAILURES as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise InvalidArgument(f"This is no JSON in UTF-8: {reason}.") from None


def read_json_body(kind: Any, request: HttpRequest) -> Any:
    """The body of a request that must be JSON; none at all is an empty object."""
    given = media_type(request)
    if given not in ("", "application/json") and not given.endswith("+json"):
        raise MediaTypeUnsupported(
            f"The body must be JSON, not {given[:60]!r}: say 'Content-Type: application/json', "
            "with curl --json."
        )
    return read_json(kind, request.body or b"{}")


def _parts(error: msgspec.ValidationError) -> tuple[str, str]:
    """What an error says, and the place that it names."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None
    return found["what"], found["place"] or ""


def _plain(what: str, kind: Any, noun: str) -> str:
    unknown = _UNKNOWN.fullmatch(what)
    if unknown is None:
        return f"{what[:1].lower()}{what[1:]}.".replace("`", "")
    known = list(getattr(kind, "__struct_fields__", ()))
    near = difflib.get_close_matches(unknown[1], known, n=1)
    hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
    return f"there is no {noun} {unknown[1][:40]!r}. {hint}"

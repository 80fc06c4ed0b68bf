"""AWS Signature Version 4 as a server checks it: who signed a request, and whether it is unchanged.

    key       = HMAC(HMAC(HMAC(HMAC("AWS4" + secret, date), region), service), "aws4_request")
    request   = method, path, query, signed headers, their names, hash of the body: one per line
    signature = HMAC(key, "AWS4-HMAC-SHA256", timestamp, scope, hash of the request: one per line)

The signature stands in the Authorization header or, for a presigned URL, in the query. `find` reads
what is claimed, the caller looks up the secret of that key, and `verify` signs the request again.

A query may be signed as it was sent or, as AWS describes it, decoded and encoded anew; clients do
either, botocore both (it sends a space as `+` and signs it as `%20`). Both are accepted: whatever
agrees with one of them decodes to the names and values that were signed. In the path `//`, `/./`
and `/x/../` are left out before signing, so whoever chooses by path must leave them out as well.
"""

from __future__ import annotations

import hmac
import re
from collections import OrderedDict
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALGORITHM: Final = b"AWS4-HMAC-SHA256"

#: Seconds that the clock of a client may be wrong, either way; as AWS.
SKEW_S_MAX: Final = 15 * 60
#: Seconds that a presigned URL may be valid: a week, as AWS.
EXPIRES_S_MAX: Final = 604_800
#: Signing keys remembered; one serves a client for a day. Four hashes make a forgotten one again.
KEYS_MAX: Final = 256

#: Headers that say what is asked for, and for whom. Whoever sends them must sign them.
_SIGNED_IF_PRESENT = (b"x-amz-target", b"x-amz-security-token")
_UNSIGNED_PAYLOAD = b"UNSIGNED-PAYLOAD"
_SIGNATURE_NAME = b"X-Amz-Signature"
_FIELDS = (b"Credential", b"SignedHeaders", b"Signature")
_PARAMETERS = frozenset(
    b"X-Amz-" + name
    for name in (*_FIELDS, b"Algorithm", b"Date", b"Expires", b"Security-Token")
)  # fmt: skip

_CREDENTIAL = re.compile(rb"([!-.0-~]+)/([0-9]{8})/([!-.0-~]+)/([!-.0-~]+)/aws4_request")
_SIGNED_HEADERS = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+(?:;[!#$%&'*+.^_`|~0-9a-z-]+)*")
_SIGNATURE = re.compile(rb"[0-9a-f]{64}")
_TIMESTAMP = re.compile(rb"[0-9]{8}T[0-9]{6}Z")
_EXPIRES = re.compile(rb"[0-9]{1,6}")
_HTTP_DATE = re.compile(
    rb"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) "
    rb"([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|UTC|[+-]0000)"
)
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()

_BAD_REQUEST_CODES = frozenset({"IncompleteSignature", "RequestExpired"})
_MISMATCH = (
    "The request signature we calculated does not match the signature you provided. "
    "Check your secret access key and signing method."
)


class SignatureRefused(Exception):
    """A request is not signed as it must be. Code and HTTP status are those of AWS."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = 400 if code in _BAD_REQUEST_CODES else 403


class Signature(NamedTuple):
    """What a request claims about its signature; nothing of it is proven."""

    key: str
    date: str
    region: str
    service: str
    signed_headers: tuple[str, ...]
    signature: str
    timestamp: str
    #: Seconds that a presigned URL is valid; None for a signature in the header.
    expires_s: int | None
    token: str


def find(headers: Mapping[bytes, bytes], query: bytes) -> Signature | None:
    """The signature of a request, from its Authorization header or else its query, or None.

    Header names are lower-case; the values of a repeated header are joined by a plain comma.
    Raises SignatureRefused (IncompleteSignature) for a signature that is not well formed.
    """
    authorization = headers.get(b"authorization", b"")
    if authorization.startswith(b"AWS"):
        return _from_header(authorization, headers)
    if b"X-Amz-" in query:
        return _maybe_from_query(query)
    return None


def verify(
    claim: Signature,
    secret: str,
    *,
    method: str,
    raw_path: bytes,
    query: bytes,
    headers: Mapping[bytes, bytes],
    body: bytes,
    now_s: float,
    service: str = "sqs",
) -> None:
    """Raise SignatureRefused unless the request was signed with this secret, recently.

    Path and query are as they were sent, still percent-encoded.
    """
    _check_scope(claim, service)
    _check_time(claim, int(now_s))
    signed_headers = _canonical_headers(claim, headers)
    payload_hash = _payload_hash(headers, body)
    start = b"%b\n%b\n" % (method.upper().encode(), _canonical_path(raw_path))
    end = b"\n%b\n%b\n%b" % (signed_headers, ";".join(claim.signed_headers).encode(), payload_hash)
    scope = f"{claim.date}/{claim.region}/{claim.service}/aws4_request"
    # Not the secret itself, which would then outlive its replacement in the memory of this module.
    identity = (sha256(secret.encode()).digest(), scope)
    signer = _signers.get(identity) or _new_signer(secret, claim)
    for canonical_query in _canonical_queries(query, presigned=claim.expires_s is not None):
        request_hash = sha256(start + canonical_query + end).hexdigest()
        mac = signer.copy()
        mac.update(f"AWS4-HMAC-SHA256\n{claim.timestamp}\n{scope}\n{request_hash}".encode())
        if hmac.compare_digest(mac.hexdigest(), claim.signature):
            _remember(identity, signer)
            return
    raise SignatureRefused("SignatureDoesNotMatch", _MISMATCH)


def _from_header(authorization: bytes, headers: Mapping[bytes, bytes]) -> Signature:
    algorithm, _, rest = authorization.partition(b" ")
    if algorithm != ALGORITHM:
        raise _incomplete("Unsupported algorithm in Authorization; use AWS4-HMAC-SHA256.")
    fields: dict[bytes, bytes] = {}
    for part in rest.replace(b",", b" ").split():
        name, _, value = part.partition(b"=")
        if name in fields or name not in _FIELDS:
            raise _incomplete(
                "The Authorization header must have Credential, SignedHeaders and Signature, "
                "each once, and nothing else."
            )
        fields[name] = value
    for name in _FIELDS:
        if name not in fields:
            raise _incomplete(f"Authorization header requires '{name.decode()}' parameter.")
    token = headers.get(b"x-amz-security-token", b"")
    return _claim(fields, b"", _header_timestamp(headers), None, token)


def _maybe_from_query(query: bytes) -> Signature | None:
    fields: dict[bytes, bytes] = {}
    for name, value in _pairs(query):
        if name in _PARAMETERS:
            if name in fields:
                raise _incomplete(f"The query has '{name.decode()}' twice; it must be there once.")
            fields[name] = unquote_to_bytes(value)
    if _SIGNATURE_NAME not in fields and b"X-Amz-Algorithm" not in fields:
        return None
    for name in (b"X-Amz-Algorithm", b"X-Amz-Date", *(b"X-Amz-" + name for name in _FIELDS)):
        if name not in fields:
            raise _incomplete(f"A signature in the query requires '{name.decode()}'.")
    if fields[b"X-Amz-Algorithm"] != ALGORITHM:
        raise _incomplete("Unsupported X-Amz-Algorithm; use AWS4-HMAC-SHA256.")
    # Some clients leave the time out; the URL is then as short-lived as a header.
    expires = fields.get(b"X-Amz-Expires", b"%d" % SKEW_S_MAX)
    if not _EXPIRES.fullmatch(expires) or not 1 <= int(expires) <= EXPIRES_S_MAX:
        raise _incomplete(f"X-Amz-Expires must be a number of seconds from 1 to {EXPIRES_S_MAX}.")
    token = fields.get(b"X-Amz-Security-Token", b"")
    return _claim(fields, b"X-Amz-", _iso_timestamp(fields[b"X-Amz-Date"]), int(expires), token)


def _claim(
    fields: Mapping[bytes, bytes],
    prefix: bytes,
    timestamp: str,
    expires_s: int | None,
    token: bytes,
) -> Signature:
    """The claim made by three fields, whose names have a prefix, and what was read already."""
    credential = _CREDENTIAL.fullmatch(fields[prefix + b"Credential"])
    if credential is None:
        raise _incomplete("Credential must be key/YYYYMMDD/region/service/aws4_request.")
    names = fields[prefix + b"SignedHeaders"]
    if not _SIGNED_HEADERS.fullmatch(names):
        raise _incomplete("SignedHeaders must be lower-case names of headers, separated by ';'.")
    signed_headers = sorted(names.decode().split(";"))
    if len(set(signed_headers)) < len(signed_headers):
        raise _incomplete("SignedHeaders must name a header once.")
    signature = fields[prefix + b"Signature"]
    if not _SIGNATURE.fullmatch(signature):
        raise _incomplete("Signature must be 64 lower-case hexadecimal digits.")
    key, date, region, service = credential.groups()
    return Signature(
        key.decode(), date.decode(), region.decode(), service.decode(), tuple(signed_headers),
        signature.decode(), timestamp, expires_s, token.decode("latin-1"),
    )  # fmt: skip


def _header_timestamp(headers: Mapping[bytes, bytes]) -> str:
    value = headers.get(b"x-amz-date") or headers.get(b"date")
    if value is None:
        raise _incomplete("Authorization header requires a 'X-Amz-Date' or a 'Date' header.")
    match = _HTTP_DATE.fullmatch(value)
    if match is None or match[2] not in _MONTHS:
        return _iso_timestamp(value)
    day, month, year, *time = match.groups()
    return (b"%b%02d%bT%bZ" % (year, _MONTHS.index(month) + 1, day, b"".join(time))).decode()


def _iso_timestamp(value: bytes) -> str:
    if not _TIMESTAMP.fullmatch(value):
        raise _incomplete("Date must be in ISO-8601 'basic format', as in 20240131T235959Z.")
    return value.decode()


def _check_scope(claim: Signature, service: str) -> None:
    if claim.service != service:
        raise _mismatch(f"Credential should be scoped to correct service: '{service}'.")
    if claim.timestamp[:8] != claim.date:
        raise _mismatch(
            f"Date in Credential scope does not match the date of the request: "
            f"'{claim.date}' != '{claim.timestamp[:8]}', from '{claim.timestamp}'."
        )


def _check_time(claim: Signature, now_s: int) -> None:
    signed = claim.timestamp
    try:
        signed_s = datetime.fromisoformat(signed).timestamp()
    except ValueError:
        raise _incomplete(f"There is no such date and time as '{signed}'.") from None
    if signed_s > now_s + SKEW_S_MAX:
        raise _mismatch(
            f"Signature not yet current: {signed} is still later than "
            f"{_shown(now_s + SKEW_S_MAX)} ({_shown(now_s)} + {SKEW_S_MAX // 60} min.)"
        )
    if claim.expires_s is None:
        if signed_s < now_s - SKEW_S_MAX:
            raise _mismatch(
                f"Signature expired: {signed} is now earlier than "
                f"{_shown(now_s - SKEW_S_MAX)} ({_shown(now_s)} - {SKEW_S_MAX // 60} min.)"
            )
    elif signed_s + claim.expires_s < now_s:
        raise SignatureRefused(
            "RequestExpired",
            f"Request has expired. It was signed at {signed} for {claim.expires_s} seconds; "
            f"it is now {_shown(now_s)}.",
        )


def _shown(time_s: int) -> str:
    return f"{datetime.fromtimestamp(time_s, UTC):%Y%m%dT%H%M%SZ}"


def _canonical_headers(claim: Signature, headers: Mapping[bytes, bytes]) -> bytes:
    """The signed headers, one per line; refuses when one is missing or too few are signed."""
    if "host" not in claim.signed_headers:
        raise _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    for name in _SIGNED_IF_PRESENT:
        if name in headers and name.decode() not in claim.signed_headers:
            raise _mismatch(f"'{name.decode()}' must be a 'SignedHeader' in the AWS Authorization.")
    lines = []
    for text in claim.signed_headers:
        name = text.encode()
        value = headers.get(name)
        if value is None:
            raise _mismatch(f"The header '{text}' was signed and is not in the request.")
        lines.append(b"%b:%b\n" % (name, b" ".join(value.split())))
    return b"".join(lines)


def _payload_hash(headers: Mapping[bytes, bytes], body: bytes) -> bytes:
    claimed = headers.get(b"x-amz-content-sha256")
    if claimed == _UNSIGNED_PAYLOAD:
        return claimed
    computed = sha256(body).hexdigest().encode()
    if claimed is not None and claimed != computed:
        raise _mismatch("The header 'x-amz-content-sha256' is not the hash of the body.")
    return computed


def _canonical_path(raw_path: bytes) -> bytes:
    """The path without dots and empty segments, encoded once more."""
    if raw_path in {b"/", b""}:
        return b"/"
    segments: list[bytes] = []
    for segment in raw_path.split(b"/"):
        if segment == b"..":
            del segments[-1:]
        elif segment not in {b"", b"."}:
            segments.append(segment)
    first = b"/" if raw_path.startswith(b"/") else b""
    last = b"/" if raw_path.endswith(b"/") and segments else b""
    return quote_from_bytes(first + b"/".join(segments) + last, "/~").encode()


def _canonical_queries(query: bytes, *, presigned: bool) -> Iterator[bytes]:
    """The query in the forms that may have been signed: as sent, then encoded anew."""
    if not query:
        yield b""
        return
    pairs = _pairs(query)
    if presigned:
        pairs = [pair for pair in pairs if pair[0] != _SIGNATURE_NAME]
    sent = _sorted_query(pairs)
    yield sent
    anew = _sorted_query([(_encoded_anew(name), _encoded_anew(value)) for name, value in pairs])
    if anew != sent:
        yield anew


def _pairs(query: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, _, value in (p.partition(b"=") for p in query.split(b"&"))]


def _sorted_query(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"&".join([b"%b=%b" % pair for pair in sorted(pairs)])


def _encoded_anew(part: bytes) -> bytes:
    return quote_from_bytes(unquote_to_bytes(part.replace(b"+", b" ")), "-_.~").encode()


#: Signing keys by hash of secret and scope, the least recently used first. Only a key that has
#: verified a request is kept, so strangers who invent regions push nobody out.
_signers: OrderedDict[tuple[bytes, str], hmac.HMAC] = OrderedDict()


def _new_signer(secret: str, claim: Signature) -> hmac.HMAC:
    key = b"AWS4" + secret.encode()
    for part in (claim.date, claim.region, claim.service, "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.new(key, digestmod=sha256)


def _remember(identity: tuple[bytes, str], signer: hmac.HMAC) -> None:
    _signers.pop(identity, None)
    _signers[identity] = signer
    if len(_signers) > KEYS_MAX:
        _signers.popitem(last=False)


def _incomplete(message: str) -> SignatureRefused:
    return SignatureRefused("IncompleteSignature", message)


def _mismatch(message: str) -> SignatureRefused:
    return SignatureRefused("SignatureDoesNotMatch", message)

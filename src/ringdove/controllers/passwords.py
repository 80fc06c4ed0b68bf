"""Passwords: hashed and checked by threads, because that is slow on purpose."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

from ringdove.errors import InvalidArgument, LimitExceeded
from ringdove.pending import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    from argon2 import PasswordHasher

T = TypeVar("T")

#: Characters of a password: fewer are guessed, more only cost time.
PASSWORD_CHARS_MIN = 8
PASSWORD_CHARS_MAX = 1_024

#: Passwords hashed at a time, 64 MiB each; and those that wait for it besides.
_HASHES_MAX = 2
_HASHES_WAITING_MAX = 64

#: The hash of a password that nobody has, checked where there is none to check.
_NOBODY = (
    "$argon2id$v=19$m=65536,t=3,p=4$KVDSoBolnVFf0JT0vnovrA"
    "$dQsKZw9+AlBixenQEfojpuiI+SbogjA5tf9vYN+K6j0"
)


class Passwords:
    """See the module."""

    def __init__(self) -> None:
        self._workers: ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(_HASHES_MAX + _HASHES_WAITING_MAX)

    async def hash(self, password: str) -> str:
        """What to keep of a password; InvalidArgument if it is too short or too long."""
        if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
            raise InvalidArgument(
                f"The password has {len(password)} characters; it must have "
                f"{PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX}."
            )
        return await self._submit(lambda: _hasher().hash(_as_bytes(password)))

    async def check(self, hashed: str | None, password: str) -> bool:
        """Whether this is the password; takes as long where there is none to check."""
        matches = await self._submit(partial(_verify, hashed or _NOBODY, password))
        return matches and hashed is not None

    def _submit(self, work: Callable[[], T]) -> Pending[T]:
        """Do long work in a thread: a hash takes as long as thousands of requests."""
        if not self._room.acquire(blocking=False):
            raise LimitExceeded("Too many passwords are being checked: try again in a moment.")
        pending: Pending[T] = Pending()

        def run() -> None:
            try:
                told = partial(pending.resolve, work())
            except BaseException as error:  # noqa: BLE001  delivered to whoever waits
                told = partial(pending.fail, error)
            self._room.release()
            told()

        if self._workers is None:
            self._workers = ThreadPoolExecutor(_HASHES_MAX, "ringdove-password")
        self._workers.submit(run)
        return pending


@lru_cache
def _hasher() -> PasswordHasher:
    """RFC 9106's choice for machines with little memory."""
    from argon2 import PasswordHasher  # noqa: PLC0415  only who has passwords needs it

    return PasswordHasher(time_cost=3, memory_cost=64 * 1024, parallelism=4)


def _verify(hashed: str, password: str) -> bool:
    from argon2.exceptions import VerificationError  # noqa: PLC0415

    if len(password) > PASSWORD_CHARS_MAX:
        password = ""
    try:
        return _hasher().verify(hashed, _as_bytes(password))
    except VerificationError:
        return False


def _as_bytes(password: str) -> bytes:
    return password.encode(errors="surrogatepass")

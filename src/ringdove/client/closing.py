"""What is closed at the end of a `with` statement, in both clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Closable(ABC):
    """Closed at the end of `with`."""

    @abstractmethod
    def close(self) -> None:
        """End what was begun. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClosable(ABC):
    """Closed at the end of `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """End what was begun. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

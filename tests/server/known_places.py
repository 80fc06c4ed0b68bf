"""A queue whose messages are at known places, and a reader that notes what it is handed."""

import threading
import time
from typing import TYPE_CHECKING, Any

import ringdove

if TYPE_CHECKING:
    from collections.abc import Callable

#: Without any progress, after which a reader is taken to hang.
STALL_S = 6.0

#: For one reader to read everything.
READ_S_MAX = 100.0

END = b"end"

Places = dict[int, list[tuple[int, bytes]]]


class Log:
    """A queue with messages at known places, each in a block of its own."""

    def __init__(self, rd: ringdove.Connection, stripes: int = 1, **settings: Any) -> None:
        self.queue = rd.create_queue("q", durability="memory", stripes=stripes, **settings)
        self.stripes = stripes
        self.expected: Places = {number: [] for number in range(stripes)}
        with self.queue.stream() as stream:
            #: The position before everything, as a reader would keep it.
            self.start = stream.position

    def send(self, count: int, body_bytes: int = 0) -> None:
        for n in range(count):
            self._send(b"%d" % n + b"." * body_bytes)

    def end(self) -> None:
        """Put a last message on every stripe."""
        for _ in range(self.stripes):
            self._send(END)

    def _send(self, body: bytes) -> None:
        sent = self.queue.send(body)
        self.expected[sent.stripe.number].append((sent.offset, body))


class Reader:
    """Reads a stream in a thread until every stripe has come to its end, or nothing comes."""

    def __init__(self, url: str, stripes: int, **options: Any) -> None:
        self.found: Places = {number: [] for number in range(stripes)}
        self.error: BaseException | None = None
        self.refuse_at: Callable[[int], bool] = lambda _: False
        self._url = url
        self._options: dict[str, Any] = {"wait": STALL_S, **options}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                ringdove.connect(self._url, silence_s=1) as rd,
                rd.queue("q").stream(**self._options) as stream,
            ):
                self._read(stream)
        except BaseException as error:
            self.error = error

    def _read(self, stream: Any) -> None:
        give_up_s = time.monotonic() + READ_S_MAX
        for turn, batch in enumerate(stream):
            assert time.monotonic() < give_up_s, "too little progress"
            if self.refuse_at(turn):
                stream.refuse(batch)
                continue
            for chunk in batch.chunks():
                place = self.found[chunk.stripe.number]
                place += zip(range(chunk.lo, chunk.hi), batch.bodies(), strict=True)
            if self._options.get("ack") == "manual":
                stream.ack(batch)
            if all(found and found[-1][1] == END for found in self.found.values()):
                return

    def result(self) -> Places:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the reader hangs"
        if self.error is not None:
            raise self.error
        return {number: list(found) for number, found in self.found.items()}

"""A real Redis process for tests: a cluster of one node that serves every slot."""

from __future__ import annotations

from ringdove.bench import redis


class RedisProcess(redis.RedisProcess):
    """Runs until the end of the `with`; may be emptied."""

    def flush(self) -> None:
        self.ask("FLUSHALL")

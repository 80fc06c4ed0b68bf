"""The embedded store: queues on this machine's disk, in LMDB, without a server."""

from ringdove.stores.embedded.store import EmbeddedStore

__all__ = ["EmbeddedStore"]

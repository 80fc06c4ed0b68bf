"""The fabric: a store on a Redis or Valkey cluster (T2.2, T3.1)."""

from ringdove.stores.fabric.store import FabricStore

__all__ = ["FabricStore"]

"""Wire formats without I/O: bytes in, events out. Shells that read and write are elsewhere."""

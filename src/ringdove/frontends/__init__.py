"""Where requests come in: I/O shells around the protocols and the broker."""

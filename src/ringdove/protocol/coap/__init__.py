"""CoAP (RFC 7252), sans-IO: packets, what is remembered of requests, repetition, blocks."""

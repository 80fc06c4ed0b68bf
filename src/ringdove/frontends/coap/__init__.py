"""The CoAP front end: devices send, receive and observe queues over UDP (RFC 7252)."""

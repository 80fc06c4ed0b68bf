"""The SQS dialect without I/O: requests from bytes, replies to bytes, rules in between."""

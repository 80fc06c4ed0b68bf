"""REST: queues and messages over plain HTTP and JSON, for people with curl and services alike."""

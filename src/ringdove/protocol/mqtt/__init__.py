"""MQTT 3.1.1 and 5 without I/O: packets, their bytes, topics, and a server's side of a session."""

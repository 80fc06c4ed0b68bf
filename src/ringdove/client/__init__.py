"""What applications import: connections, queues, producers, consumers; sync and async."""

"""Benchmarks and the demo: what this machine does, measured side by side with what limits it."""

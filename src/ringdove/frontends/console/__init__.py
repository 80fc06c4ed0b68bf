"""The console's server side: its files, sessions, a live stream, and JSON that only it needs."""

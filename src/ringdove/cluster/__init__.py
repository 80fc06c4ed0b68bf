"""Redis clusters in rings: laid out, started, formed, looked at, and put right after failures."""

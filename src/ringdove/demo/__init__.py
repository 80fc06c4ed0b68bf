"""The demo: a fleet of smart meters, a pipeline on Spark, and things that go wrong on purpose."""

"""A ready-made data pipeline as a project of Spark Declarative Pipelines (S1).

`scaffold` writes a project for a queue and the schema of its messages, `running` runs it, `status`
tells how far it is. A project is plain files that belong to their user; these modules only know
its settings (`project`).
"""

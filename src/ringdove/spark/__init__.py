"""Ringdove as a data source and sink of Spark (S1): `spark.read.format("ringdove")`.

Needs `pip install 'ringdove[spark]'`. Nothing has to be registered: Spark finds the package
`pyspark_ringdove` by its name.
"""

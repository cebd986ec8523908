"""The part of Spark's DataFrames that the pipeline's tables use, on DuckDB, in this process.

A table of the pipeline is written once, against the interface of PySpark. On a small record this
package executes it, without Java: `columns` and `functions` make SQL of expressions, `frames` of
whole tables, `session` reads files and holds the database. Names and meanings are Spark's: a null
comes first, a division has a fraction, the texts of numbers are whole numbers or an error. What
the tables do not use is not here, and fails.

Tests hold every table equal, row by row, to what Spark makes of the same record.
"""

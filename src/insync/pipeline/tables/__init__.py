"""One module per table of the pipeline: a function of DataFrames and its schema."""

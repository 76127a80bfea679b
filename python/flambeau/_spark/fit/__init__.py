"""A fit, from a DataFrame to a fitted model: what the driver asks of Spark, and what a task does."""

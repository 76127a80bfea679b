"""What `transform` runs: rows in, the module's outputs out, in Python or in the JVM, on CPUs and GPUs."""

"""Batches in, the module's outputs out: on the CPU, or on a GPU that a machine's tasks take turns at."""

"""One rank of a training: what it gets, where it meets the others, what it runs, and how it ended."""

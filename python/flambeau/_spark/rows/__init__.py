"""Where the rows of a training come from."""

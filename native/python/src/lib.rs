//! flambeau-python.

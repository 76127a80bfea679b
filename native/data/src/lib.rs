//! flambeau-data.

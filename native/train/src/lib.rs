//! flambeau-train.

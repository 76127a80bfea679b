//! flambeau-collective.

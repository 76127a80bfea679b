//! What `flambeau-worker` does, once libtorch is there.

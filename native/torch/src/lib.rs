//! libtorch programs as Flambeau's models.

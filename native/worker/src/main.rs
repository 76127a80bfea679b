//! `flambeau-worker`: finds libtorch, loads it and the library that does the work, and runs it.

fn main() {}

//! The library that the JVM loads.

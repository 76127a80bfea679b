"""Train PyTorch models as a Spark ML estimator, on native Rust workers."""

"""Models and estimators as files: programs, weights and metadata."""

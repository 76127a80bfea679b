//! Graphs of `torch.export`.

"""The `nn.Module` under training: what the native worker calls, in terms of torch alone, without Spark."""

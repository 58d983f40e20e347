"""The embedded engine: a KV-cache sampler with continuous batching."""

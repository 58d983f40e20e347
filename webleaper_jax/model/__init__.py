"""Flax NNX decoder (Qwen3 dense, Llama) and Hugging Face checkpoints."""

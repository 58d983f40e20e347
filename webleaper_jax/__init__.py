"""WebLeaper (arXiv 2510.24697) in JAX: records, scoring, agent, model, SFT, GRPO and evaluation."""

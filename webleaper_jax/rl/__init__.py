"""Advantages, losses, rollouts, weight sync and the GRPO trainer."""

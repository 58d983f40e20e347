"""Train state, checkpoints, metrics and the SFT trainer."""

"""The data stage: tables, trees, tasks, trajectories and their filter. No jax."""

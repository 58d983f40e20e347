"""Aggregation with intervals, controls, plots and the report. No jax."""

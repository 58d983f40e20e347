"""Entity normalisation and matching, coverage and efficiency, soft F: no jax, no network."""

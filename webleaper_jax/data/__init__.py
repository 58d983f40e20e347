"""SFT examples, packing, TFDS/ArrayRecord sets and the grain pipeline."""

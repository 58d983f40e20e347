"""One `get_config(preset)` per file (ml_collections), given to a launcher as `--config=configs/NAME.py:PRESET`."""

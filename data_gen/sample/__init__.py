"""The bundled sample: real Wikipedia tables, cut down to facts (licence and attribution: README.md beside it)."""

import pathlib


def sample_tables() -> pathlib.Path:
    """Returns the path of the sample, a `.jsonl.gz` file of `Table` records."""
    return pathlib.Path(__file__).with_name("tables.jsonl.gz")

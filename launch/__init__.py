"""Command-line entry points, one per stage; each is run as `python -m launch.NAME --help`."""

"""The one exception that users meet."""


class DataError(Exception):
    """A user's mistake in a file or a setting: printed as one line, without a traceback."""

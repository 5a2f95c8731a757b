"""The one exception that means: the input is wrong, not the program."""


class InputError(ValueError):
    """Input that cannot be used; the message says what was given, what was expected, what to do.

    The command line turns it into one line and exit code 2; Python callers see a `ValueError`.
    """

"""The exception for wrong input, as opposed to a defect of the program."""


class InputError(ValueError):
    """Invalid input; the message states what was given, what was expected and what to do.

    The command line turns it into one line and exit code 2; Python callers see a `ValueError`.
    """


def require(condition: object, message: str) -> None:
    """Raise `InputError` with the message unless the condition holds."""
    if not condition:
        raise InputError(message)

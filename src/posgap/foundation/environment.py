"""Numbers that variables of the environment set."""

import os

from posgap.foundation.errors import BadOption


def read_number(variable: str, default: float, least: float, most: float) -> float:
    """Returns the number in an environment variable; `default` if it is unset or empty.

    Raises `BadOption` if it holds something else, or a number below `least` or above `most`.
    """
    text = os.environ.get(variable, "") or default
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number <= most:
        raise BadOption(f"{variable}: {text!r} is not a number from {least:.0f} to {most:.0f}; correct or unset it")
    return number

"""Options of `doctor`."""

from posgap.options.base import Config
from posgap.options.verb import Verb


class DoctorConfig(Config):
    """Says what this machine can do, and how to install or repair what is missing. Exit code 1: something that is
    configured does not work.
    """


VERB = Verb(DoctorConfig, "")

"""posgap measures, closes and gates the position gap of long-context language models."""

__version__ = "0.1.0"

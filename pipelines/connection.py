"""Connects to a KFP server at the first use: kfp's import takes half a second."""

from typing import TYPE_CHECKING

from posgap.options.pipelines import KfpConfig
from posgap.pipelines.transport import address

if TYPE_CHECKING:
    from posgap.pipelines.client import Client


def connect(config: KfpConfig) -> "Client":
    """Returns KFP's client of the server. Raises `PosgapError` if it has no address."""
    address(config)
    from posgap.pipelines.client import Client  # late: kfp

    return Client(config)

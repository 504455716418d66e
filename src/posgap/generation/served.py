"""What an endpoint says of the model behind it, which is all that is known of that: sweeps record it."""

from typing import Literal, Self

from posgap.files import Record


class Served(Record):
    """The names and fingerprints under which a model answered, in the order in which they first appeared, and the
    parameters of requests that the endpoint did not take, so that they were left out."""

    models: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def said(self, what: Literal["model", "fingerprint"]) -> tuple[str, ...]:
        """The names, or the fingerprints."""
        return self.models if what == "model" else self.fingerprints

    def saying(self, what: Literal["model", "fingerprint"], value: str) -> Self:
        """The same with one more name or fingerprint."""
        return self.model_copy(update={f"{what}s": (*self.said(what), value)})

    def without(self, parameter: str) -> Self:
        """The same with one more parameter left out."""
        return self.model_copy(update={"left_out": (*self.left_out, parameter)})

"""Options of `data make`."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from posgap.data.generators import GENERATORS
from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import POSITIONAL, OutputPath
from posgap.foundation.registry import WholeNumber
from posgap.options.base import FileConfig
from posgap.options.verb import Verb
from posgap.tasks.fields import MAX_DOCS


class MakeConfig(*GENERATORS.bases(), FileConfig):  # type: ignore[misc]  # mypy needs named base classes
    """Writes synthetic data of a kind, or gives questions distractors."""

    out: OutputPath = Field(description="file to write, .jsonl or .jsonl.gz")
    kind: Annotated[str, POSITIONAL, GENERATORS, AfterValidator(GENERATORS.require_name)] = Field(
        description=GENERATORS.help_text()
    )
    n_examples: int = Field(300, ge=1, description="examples, one a line; all kinds but qa")
    n_docs: WholeNumber = Field(
        None,
        ge=1,
        le=MAX_DOCS,
        description="documents in an example, the gold ones included, or records, or items to choose from",
    )
    seed: int = Field(0, ge=0, description="equal seeds write equal files")

    @classmethod
    def shown_defaults(cls) -> dict[str, str]:
        usual = [kind.usual for kind in GENERATORS]
        most = max(usual, key=usual.count)
        others = [f"{kind.name}: {kind.usual}" for kind in GENERATORS if kind.usual != most]
        return {"n_docs": ", ".join([str(most), *others])}

    @model_validator(mode="after")
    def _takes_what_is_given(self) -> Self:
        kind = GENERATORS[self.kind]
        common = ("kind", *FileConfig.model_fields)
        for name in sorted(self.model_fields_set - {*common, *kind.takes()}):
            taking = [each.name for each in GENERATORS if name in each.takes()]
            raise ValueError(f"`{name}` is an option of {', '.join(taking)}, not of {kind.name}")
        try:
            kind.arguments({"n_docs": self.n_docs})
        except PosgapError as error:
            raise ValueError(str(error)) from None
        return self


VERB = Verb(MakeConfig, "kv --n-examples 40 --out made.jsonl.gz")

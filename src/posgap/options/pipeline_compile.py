"""Options of `pipeline compile`."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from posgap.foundation.fields import (
    Local,
    OnThisMachine,
    Role,
    location_if_any,
)
from posgap.options.pipelines import KfpConfig, UploadedName, _OneOfOurs
from posgap.options.verb import Verb


class PipelineCompileConfig(KfpConfig, _OneOfOurs):
    """Compiles a pipeline to YAML, for upload in the KFP UI, or uploads it to a KFP server as a version.

    With a file it says what a run would request from the cluster, and warns of what looks wrong. What is there already
    is not uploaded again.
    """

    out: Annotated[Local | None, Role.OUTPUT, BeforeValidator(location_if_any), OnThisMachine] = Field(
        None, description="file to write; empty: standard output, unless it is uploaded"
    )
    force: bool = Field(False, description="replace another file of this name")
    kfp: Literal["2.15", "2.16", "2.17"] = Field(
        "2.17", description="version of the KFP server; what an older one does not know is left out"
    )
    host: str = Field("", description="address of KFP, like http://localhost:8080, to upload to; empty: nowhere")
    version: UploadedName = Field(
        "", description="with --host: name of the version; empty: posgap's version and a digest"
    )


VERB = Verb(PipelineCompileConfig, "--out pipeline.yaml")

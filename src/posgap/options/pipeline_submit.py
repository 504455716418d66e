"""Options of `pipeline submit`."""

from pydantic import Field

from posgap.options.pipelines import PipelineOnCluster
from posgap.options.verb import Verb


class PipelineSubmitConfig(PipelineOnCluster):
    """Runs a pipeline on a KFP server. The token is read from KFP_TOKEN, never from the command line."""

    name: str = Field("", description="name of the run; empty: the pipeline's name and the time")
    no_cache: bool = Field(False, description="run every step again, even if KFP has its result in the cache")
    wait: bool = Field(False, description="wait for the end; exit code 4 if the run failed, 5 if it was cancelled")
    timeout: float = Field(
        86400.0, gt=0, description="with --wait: seconds to wait at most; after that exit code 6, while the run goes on"
    )


VERB = Verb(PipelineSubmitConfig, "--host http://localhost:8080 --param model=Qwen/Qwen3-0.6B --wait")

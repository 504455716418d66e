"""Options of `report`."""

from pydantic import Field

from posgap.options.base import FreshConfig
from posgap.options.promote import PromoteConfig
from posgap.options.verb import Kind, Verb


class ReportConfig(FreshConfig):
    """Reports how a pipeline run ended: in MLflow, and to a webhook if there is one.

    POSGAP_PIPELINE_RUN names the run, and POSGAP_WEBHOOK_URL is the webhook's address.
    """

    state: str = Field(
        "", description="final state of the run according to KFP; empty: derived from its stages in MLflow"
    )
    message: str = Field("", description="KFP's message about the final state")
    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")


VERB = Verb(ReportConfig, "--state SUCCEEDED --out run/report", results=("report.json",), kind=Kind.STAGE)

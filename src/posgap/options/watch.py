"""Options of `watch`."""

from pydantic import Field

from posgap.foundation.fields import (
    InputPath,
    SettingsText,
)
from posgap.options.base import FreshConfig
from posgap.options.verb import Kind, Verb


class WatchConfig(FreshConfig):
    """Judges the champion's sweep on fresh data by its policy. Exit code 3: the champion breaks the policy."""

    champion: InputPath = Field(description="folder from `champion`")
    mitigate: SettingsText = Field(
        "{}",
        description="parameters of the mitigation pipeline as YAML, like {methods: r1, ...}, which is started on the "
        "KFP server when the champion has left its policy; empty: it is not started",
    )
    namespace: str = Field(
        "",
        description="namespace for the run of `mitigate`, if KFP is multi-user; empty: single-user",
    )


VERB = Verb(
    WatchConfig, "--champion run/champion --out run/watch", results=("watch.json",), kind=Kind.STAGE_WITH_CHECKS
)

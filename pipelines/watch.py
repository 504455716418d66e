"""The pipeline that watches the champion: it alone is swept, on fresh data, and judged by its policy."""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from posgap.components.table import champion, data_version, report
from posgap.components.table import watch as judge
from posgap.options.cluster import ClusterConfig
from posgap.pipelines.forms import FORMS, form
from posgap.pipelines.pools import Pools, cluster_config


def watch_pipeline(cluster: ClusterConfig) -> Callable:
    """The pipeline as compiled for a cluster. Its form is `WatchFormConfig`."""

    @dsl.pipeline(
        name="posgap-watch",
        description="Sweep the champion on fresh data; fail, tell and mitigate if it has left its policy.",
        pipeline_root=cluster.pipeline_root,
    )
    @form(FORMS["watch"])
    def watch(**parameters: Any):
        """data version -> champion -> watch."""
        name = parameters["registered_name"]
        pools = Pools(cluster)
        ending = pools.report(report(registered_name=name)).set_caching_options(False)
        with dsl.ExitHandler(ending, name="watch"):
            data = pools.small(data_version(data=parameters["data_eval"], name=name, only_new=False))
            data.set_caching_options(False)
            # Always so. The group makes data_version's outputs the importer's inputs, as in the mitigation pipeline.
            with dsl.If(data.outputs["Output"] == True, name="something to do"):  # noqa: E712  KFP reads it
                fresh = dsl.importer(artifact_uri=data.outputs["uri"], artifact_class=dsl.Dataset).output
                version = {"version": data.outputs["champion"], "cache_key": data.outputs["champion_key"]}
                swept = pools.inference(champion(examples=fresh, name=name, **version)).outputs["out"]
                mitigation = {"mitigate": parameters["mitigate"], "namespace": parameters["namespace"]}
                # Its outcome is what the run is about, and it may start another run.
                pools.watch(judge(champion=swept, **mitigation)).set_caching_options(False)

    return watch


watch = watch_pipeline(cluster_config())

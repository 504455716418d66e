"""A client of a KFP server, with the experiment that its runs and schedules belong to."""

import contextlib
import io
import json
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import kfp
import kfp.client
import kfp_server_api

from posgap.options.cluster import KFP_TOKEN
from posgap.options.pipelines import KfpConfig, ServerConfig
from posgap.pipelines.transport import Transport, address, once

Version: TypeAlias = kfp_server_api.V2beta1PipelineVersion


class Client(kfp.Client):
    """KFP's client, changed so that it sends nothing when it is created, prints nothing, and fails with one line.

    The token comes from KFP_TOKEN, or else, in a pod, from the service account. Requests raise `ServerRefusal` and
    `NoAnswer` of transport.py. `connection.connect` makes it.
    """

    def __init__(self, config: KfpConfig):
        token = os.environ.get(KFP_TOKEN, "").strip()
        source = KFP_TOKEN
        file = Path(os.environ.get(kfp.client.KF_PIPELINES_SA_TOKEN_ENV) or kfp.client.KF_PIPELINES_SA_TOKEN_PATH)
        credentials = None
        if not token:
            source = str(file) if file.is_file() else ""
            # A pod's token is renewed in its file from time to time, so it is read again for every request.
            credentials = kfp.client.ServiceAccountTokenVolumeCredentials(str(file)) if source else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().__init__(
                host=address(config),
                namespace=config.namespace,
                existing_token=token or None,
                credentials=credentials,
                ssl_ca_cert=os.environ.get("SSL_CERT_FILE"),
            )
        api = self._run_api.api_client  # one object, shared by all its APIs
        api.rest_client = Transport(api.configuration, source)

    def get_kfp_healthz(self, sleep_duration: int = 5) -> kfp_server_api.V2beta1GetHealthzResponse:
        """Answers without a request: KFP's client only uses it to find a namespace, and on failure waits 25 s."""
        return kfp_server_api.V2beta1GetHealthzResponse(multi_user=False)

    def quietly_uploaded(self, package: str, version: str, pipeline_id: str, description: str) -> Version:
        """A new version of a pipeline, by KFP's `upload_pipeline_version` without the link that it prints."""
        with contextlib.redirect_stdout(io.StringIO()):
            return self.upload_pipeline_version(package, version, pipeline_id=pipeline_id, description=description)

    def run_pipeline(self, *arguments: Any, **options: Any) -> kfp_server_api.V2beta1Run:
        """KFP's `run_pipeline`, without the links that it prints."""
        with contextlib.redirect_stdout(io.StringIO()):
            return super().run_pipeline(*arguments, **options)

    def find_workflow(self, run_id: str) -> dict[str, Any]:
        """Argo's record of a run, which KFP's first API alone gives; empty before there is one."""
        found = self._run_api.api_client.call_api(
            f"/apis/v1beta1/runs/{run_id}",
            "GET",
            header_params={"Accept": "application/json"},
            response_type="object",
            auth_settings=["Bearer"],
            _return_http_data_only=True,
        )
        return json.loads((found or {}).get("pipeline_runtime", {}).get("workflow_manifest") or "{}")

    def run_url(self, run_id: str) -> str:
        """The address of a run's page in the UI."""
        return f"{self._get_url_prefix().rstrip('/')}/#/runs/details/{run_id}"

    def version_url(self, version: Version) -> str:
        """The address of a pipeline version's page in the UI, which has its graph and its form."""
        page = f"{version.pipeline_id}/version/{version.pipeline_version_id}"
        return f"{self._get_url_prefix().rstrip('/')}/#/pipelines/details/{page}"

    def find_versions(self, pipeline_id: str, **equal: str) -> list[Version]:
        """Returns the newest 100 versions of a pipeline whose fields have the values `equal`."""
        page = self.list_pipeline_versions(
            pipeline_id, filter=_equal(equal) if equal else None, sort_by="created_at desc", page_size=100
        )
        return page.pipeline_versions or []

    def find_runs(self, experiment_id: str, **equal: str) -> list[kfp_server_api.V2beta1Run]:
        """Returns the newest 100 runs of an experiment whose fields have the values `equal`."""
        page = self.list_runs(
            experiment_id=experiment_id, filter=_equal(equal), sort_by="created_at desc", page_size=100
        )
        return page.runs or []

    def find_recurring_runs(self, experiment_id: str, **equal: str) -> list[kfp_server_api.V2beta1RecurringRun]:
        """Returns all recurring runs of an experiment whose fields have the values `equal`, the newest first."""
        recurring_runs: list[kfp_server_api.V2beta1RecurringRun] = []
        token = ""
        while True:
            page = self.list_recurring_runs(
                experiment_id=experiment_id,
                filter=_equal(equal),
                sort_by="created_at desc",
                page_size=100,
                page_token=token,
            )
            recurring_runs += page.recurring_runs or []
            token = page.next_page_token or ""
            if not token:
                return recurring_runs

    def find_experiment(self, config: ServerConfig) -> str | None:
        """The id of the experiment, or None if there is none of that name."""
        page = self.list_experiments(namespace=config.namespace, filter=_equal({"display_name": config.experiment}))
        return page.experiments[0].experiment_id if page.experiments else None

    def ensure_experiment(self, config: ServerConfig) -> str:
        """The id of the experiment, which is created if there is none of that name."""
        wanted = kfp_server_api.V2beta1Experiment(display_name=config.experiment, namespace=config.namespace or None)
        create = partial(self.experiments.experiment_service_create_experiment, experiment=wanted)
        return _find_or_create(lambda: self.find_experiment(config), lambda: create().experiment_id)

    def find_pipeline(self, config: KfpConfig, name: str) -> str | None:
        """The id of the pipeline of this name, or None if there is none."""
        page = self.list_pipelines(
            namespace=config.namespace or None, filter=_equal({"display_name": name}), page_size=100
        )
        return page.pipelines[0].pipeline_id if page.pipelines else None

    def ensure_pipeline(self, config: KfpConfig, name: str) -> str:
        """The id of the pipeline of this name, which is created, without a version, if there is none."""
        wanted = kfp_server_api.V2beta1Pipeline(name=name, display_name=name, namespace=config.namespace or None)
        create = partial(self._pipelines_api.pipeline_service_create_pipeline, pipeline=wanted)
        return _find_or_create(lambda: self.find_pipeline(config, name), lambda: create().pipeline_id)


def _find_or_create(find: Callable[[], str | None], create: Callable[[], str]) -> str:
    """The id of an object, which is created once if there is none."""

    def find_all() -> dict[str, str]:
        found = find()
        return {found: found} if found else {}

    return find() or once(create, find_all)


def _equal(fields: dict[str, str]) -> str:
    """KFP's filter for fields that have these values; operation 1 is EQUALS."""
    return json.dumps({"predicates": [{"operation": 1, "key": k, "stringValue": v} for k, v in fields.items()]})

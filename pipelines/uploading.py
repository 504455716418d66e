"""Pipelines with versions on a KFP server: its page *Pipelines* has them, and runs and schedules go by them."""

from typing import TYPE_CHECKING

import yaml

from posgap import __version__
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.printing import show
from posgap.options.pipeline_compile import PipelineCompileConfig
from posgap.options.pipelines import PipelineOnCluster
from posgap.pipelines.compilation import CompiledYaml, parse
from posgap.pipelines.connection import connect
from posgap.pipelines.transport import once

if TYPE_CHECKING:
    from posgap.pipelines.client import Version

LATEST = "latest"


def upload(compiled: CompiledYaml, config: PipelineCompileConfig) -> None:
    """Uploads a compiled pipeline as a version; prints the result, and the address of the version's page.

    An identical version of that name is left unchanged. Raises `PosgapError` if it differs, since a version cannot be
    changed.
    """
    digest = digest_of([compiled.spec, compiled.platform])
    name = compiled.name
    version = config.version or f"{__version__}-{digest[:8]}"
    if version == LATEST:
        raise PosgapError(f"--version: {LATEST} stands for the newest version; give another name")
    client = connect(config)
    pipeline = client.ensure_pipeline(config, name)

    def existing() -> dict[str, "Version"]:
        return {each.pipeline_version_id: each for each in client.find_versions(pipeline, display_name=version)}

    there = next(iter(existing().values()), None)
    if there and not (there.description or "").endswith(digest):
        raise PosgapError(f"{name}: version {version} exists with other content; give --version another name")
    with compiled.package() as package:
        held = there or once(
            lambda: client.quietly_uploaded(package, version, pipeline, f"posgap {__version__} {digest}"),
            existing,
        )
    done = "unchanged" if there else "uploaded"
    url = client.version_url(held)
    show(
        f"{name} version {version}: {done}\n{url}", {"pipeline": name, "version": version, "outcome": done, "url": url}
    )


def fetch_uploaded(config: PipelineOnCluster) -> CompiledYaml:
    """Returns the version that `config` names, as the server holds it. Raises `PosgapError` if there is none."""
    if config.file:
        raise PosgapError("--version: --file cannot change an uploaded version; leave one out")
    client = connect(config)
    name = f"posgap-{config.pipeline}"
    pipeline = client.find_pipeline(config, name)
    if not pipeline:
        raise PosgapError(f"pipeline {name}: not found; `posgap pipeline compile --host` uploads it")
    wanted = {} if config.version == LATEST else {"display_name": config.version}
    found = client.find_versions(pipeline, **wanted)
    if not found:
        known = ", ".join(each.display_name for each in client.find_versions(pipeline)[:5])
        raise PosgapError(f"{name}: no version {config.version}; the newest are {known or 'none'}")
    held = client.get_pipeline_version(pipeline, found[0].pipeline_version_id)
    both = held.pipeline_spec
    documents = [both["pipeline_spec"], both.get("platform_spec", {})] if "pipeline_spec" in both else [both]
    compiled = parse(yaml.safe_dump_all(documents), f"{name} version {held.display_name}")
    reference = {"pipeline_id": pipeline, "version_id": held.pipeline_version_id}
    return CompiledYaml(compiled.spec, compiled.platform, reference)

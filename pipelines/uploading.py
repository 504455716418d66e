"""Pipelines with versions on a KFP server: its page *Pipelines* has them, and runs and schedules go by them."""

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from posgap import __version__
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.printing import show
from posgap.pipelines.checks import Check, table
from posgap.pipelines.compilation import CompiledYaml, compiled_text, for_server, load, parse, pipeline
from posgap.pipelines.config import PipelineCompileConfig, PipelineOnCluster
from posgap.pipelines.connection import connect
from posgap.pipelines.transport import once
from posgap.storage.outputs import File

if TYPE_CHECKING:
    from posgap.pipelines.client import Version

LATEST = "latest"


def upload(compiled: CompiledYaml, config: PipelineCompileConfig) -> None:
    """Uploads a compiled pipeline as a version; prints what came of it, and the address of the version's page.

    A version of that name that is the same is left as it is. Raises `PosgapError` where it is another one, since a
    version cannot be changed.
    """
    digest = digest_of([compiled.spec, compiled.platform])
    name, version = compiled.name, config.version or f"{__version__}-{digest[:8]}"
    if version == LATEST:
        raise PosgapError(f"--version: {LATEST} stands for the newest version; give another name")
    client = connect(config)
    pipeline = client.ensure_pipeline(config, name)

    def existing() -> dict[str, "Version"]:
        return {each.pipeline_version_id: each for each in client.find_versions(pipeline, display_name=version)}

    there = next(iter(existing().values()), None)
    if there and not (there.description or "").endswith(digest):
        raise PosgapError(f"{name}: version {version} is there, and another one; give --version another name")
    with compiled.package() as package:
        held = there or once(
            lambda: client.quietly_uploaded(package, version, pipeline, f"posgap {__version__} {digest}"),
            existing,
        )
    done, url = "unchanged" if there else "uploaded", client.version_url(held)
    show(
        f"{name} version {version}: {done}\n{url}", {"pipeline": name, "version": version, "outcome": done, "url": url}
    )


def fetch_uploaded(config: PipelineOnCluster) -> CompiledYaml:
    """The version that `config` names, as the server holds it. Raises `PosgapError` where there is none."""
    if config.file:
        raise PosgapError("--version: --file cannot change a version that was uploaded; leave one of them out")
    client, name = connect(config), f"posgap-{config.pipeline}"
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


def compile_pipeline(config: PipelineCompileConfig) -> None:
    """Writes the compiled pipeline to `config.out`, atomically, or uploads it to `config.host`, or both; with neither
    it goes to standard output. Prints or logs what a run would ask of the cluster, and warnings.

    A file replaces an older compilation of the same pipeline; any other file only if `config.force` is set, which is
    told before the pipeline is compiled. Raises `PosgapError` where every run would fail for how it is compiled.
    """
    made = pipeline(config.pipeline)

    def is_older(file: Path) -> bool:
        try:
            return load(file).name == made.name
        except PosgapError:
            return False

    def compile_checked() -> tuple[str, CompiledYaml, Check]:
        text = for_server(compiled_text(made), config.kfp)
        compiled = parse(text, made.name)
        return text, compiled, Check(compiled, {})

    if config.out is None:
        text, compiled, check = compile_checked()
    else:
        with File(config, config.force, may_replace=is_older) as output:
            output.require_replaceable()
            text, compiled, check = compile_checked()
            output.partial.write_text(text, encoding="utf-8")
            output.take_place()
        if not config.host:
            show(table(check), {"pipeline": compiled.name, "out": str(config.out)} | check.result)
            return
    check.log_warnings()
    if config.host:
        upload(compiled, config)
    else:
        show(text.rstrip("\n"), {"pipeline": compiled.name, "documents": list(yaml.safe_load_all(text))})

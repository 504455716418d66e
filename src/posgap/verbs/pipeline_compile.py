"""pipeline compile: a pipeline as YAML, or as a version on a KFP server."""

from pathlib import Path

import yaml

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.options.pipeline_compile import PipelineCompileConfig
from posgap.pipelines.checks import Check, table
from posgap.pipelines.compilation import CompiledYaml, compiled_text, for_server, load, parse, pipeline
from posgap.pipelines.uploading import upload
from posgap.storage.outputs import File


def pipeline_compile(config: PipelineCompileConfig) -> None:
    """Writes the compiled pipeline to `config.out`, atomically, or uploads it to `config.host`, or both; with neither
    it goes to standard output. Prints or logs what a run would request from the cluster, and warnings.

    It replaces an older compilation of the same pipeline; any other file only if `config.force` is set, and says so
    before it compiles. Raises `PosgapError` if every run would fail because of the way it is compiled.
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

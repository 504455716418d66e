"""pipeline run: a pipeline on this machine."""

from importlib.util import find_spec
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.extras import how_to_install
from posgap.foundation.interruption import resumable
from posgap.foundation.printing import show
from posgap.options.pipeline_run import PipelineRunConfig
from posgap.pipelines.forked_steps import begin_server
from posgap.pipelines.local import run_locally
from posgap.storage.outputs import RunFolder
from posgap.tracking.server import track_at


@resumable()
def pipeline_run(config: PipelineRunConfig) -> None:
    """Runs a pipeline in `config.out`, and prints its report and the folder of its steps."""
    from posgap.pipelines.arguments import arguments
    from posgap.pipelines.compilation import compiled_text, parse, pipeline

    if config.pipeline == "mitigation" and not find_spec("great_expectations"):
        raise PosgapError(how_to_install("great_expectations"))  # before any step runs, and not by the third
    chosen = pipeline(config.pipeline)
    with RunFolder(config, "pipeline_run") as output:
        begin_server()
        values = arguments(config, parse(compiled_text(chosen), chosen.name).parameters)
        out = output.out
        # Promotion needs a registry, and the next run the champion that is in it.
        track_at(f"sqlite:///{Path.cwd()}/mlflow.db")
        folder = run_locally(chosen, values, root=out / "steps", cache=out / "cache", log=out / "pipeline.log")
    reports = [report.read_text(encoding="utf-8") for report in folder.glob("report/out/report.md")]
    show("\n".join([*reports, str(folder)]), {"folder": str(folder), "report": "\n".join(reports)})

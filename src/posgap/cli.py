"""The command line: one verb per stage, its options read off the verb's config.

Exit codes: 0 done, 1 `pipeline lint`, `verify` or `doctor` found something, or a fault of posgap itself (its line names
the file that has the traceback), 2 bad input (one line says what, where and what to do), 3 the gate refused, 4 a
submitted run failed, 5 it was cancelled, 6 it was still under way when the time was up, 7 the gate had not enough
evidence, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from posgap import __version__, config, config_file
from posgap.choices import SECRET
from posgap.config import ON_HUB, POSITIONAL, Config, plain_type
from posgap.config.fields import choices_of
from posgap.errors import GateFailed, NotEnoughEvidence, OfAll, PosgapError, complaint_of, place_of_fault, shortened
from posgap.extras import how_to_install
from posgap.internal_errors import told
from posgap.interruption import stop_on_termination
from posgap.launch import end, end_together, is_main_process
from posgap.locations import is_hub_name, with_uris
from posgap.redaction import redacted


def _kind(info: FieldInfo) -> dict[str, Any]:
    """How click takes a field: the type it checks; what pydantic parses itself stays text."""
    annotation, registered = info.annotation, choices_of(info)
    if registered:
        # MLproject has no way to leave a parameter out: an empty one leaves the choice open.
        names = registered.names() + ([""] if info.default == "" else [])
        return {"type": click.Choice(names), "metavar": f"[{'|'.join(registered.names())}]"}
    if annotation is bool:
        return {"is_flag": True}
    if choices := [a for a in get_args(annotation) if isinstance(a, str)]:
        return {"type": click.Choice(choices), "metavar": f"[{'|'.join(filter(None, choices))}]"}
    if numbers := [a for a in get_args(annotation) if a in (int, float)]:  # which may be left empty
        return {"type": config_file.Text(), "metavar": "INTEGER" if int in numbers else "FLOAT"}
    if annotation == dict[str, str]:
        return {"multiple": True, "metavar": "NAME=VALUE"}
    kind = plain_type(info)
    return {"type": kind if kind in (int, float) else config_file.Text()}


def is_argument(field: FieldInfo) -> bool:
    """Whether a field is given without its name: `posgap compare A B`."""
    return POSITIONAL in field.metadata


class _Verb(click.Command):
    """A command whose flags may be given a value too, after an equals sign: `--force=false`. MLproject and other
    programs that write command lines have no way to leave an option out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = {
            name: option
            for option in self.params
            if isinstance(option, click.Option) and option.is_flag
            for name in option.opts
        }

        def words(arg: str) -> list[str]:
            name, equals, value = arg.partition("=")
            if not equals or name not in flags:
                return [arg]
            is_set = click.BOOL.convert(value, flags[name], ctx)
            return flags[name].opts[:1] if is_set else flags[name].secondary_opts[:1]

        return super().parse_args(ctx, [word for arg in args for word in words(arg)])


def verb(name: str, config_type: type[Config], target: str, kind: "type[_Verb] | None" = None) -> click.Command:
    """A command whose options are the config's fields and whose work is `module:function`.

    The module is imported when the verb runs, so that `--help` stays quick.
    """
    options: list[click.Parameter] = []
    for field, info in config_type.model_fields.items():
        if is_argument(info):
            several: dict[str, Any] = {"nargs": -1} if get_origin(info.annotation) is list else {}
            options.append(click.Argument([field], required=info.is_required(), **several, **_kind(info)))
            continue
        shown = json.dumps(info.default) if isinstance(info.default, dict | list) else info.default
        default = {} if info.default in (None, "", [], {}) else {"default": shown}
        word = field.replace("_", "-")
        options.append(
            click.Option(
                [f"--{word}/--no-{word}" if info.default is True else f"--{word}"],
                help=info.description,
                show_default=config_type.shown_defaults().get(field, info.default is not False),
                **_kind(info),
                **({"required": True} if info.is_required() else default),
            )
        )
        if ON_HUB in info.metadata:
            options.append(click.Option(["--revision"], help=f"commit, tag or branch of a {word} on the hub"))

    options.append(config_file.option())
    has_format = "json" in get_args(getattr(config_type.model_fields.get("format"), "annotation", None))
    if has_format or config_type in RESULTS:
        said = "print the result as JSON to standard output, and nothing else"
        options.append(click.Option(["--json"], is_flag=True, help=said))

    def run(**given: Any) -> None:
        as_json = given.pop("json", False)
        if as_json and has_format:
            given["format"] = "json"
        # Of a model that is read it is part of its name; a verb that pushes has a field of its own for it.
        revision = None if "revision" in config_type.model_fields else given.pop("revision", None)
        values = {k: v for k, v in given.items() if v is not None and v != ()}
        try:
            parsed = config_type(**values)
            if revision:
                parsed = config_type(**values | {"model": _at_revision(parsed, revision)})
        except ValidationError as error:
            raise PosgapError(_misuse(config_type, error)) from None
        if as_json and not has_format:
            _print_result(_function(target), parsed)
        else:
            _function(target)(parsed)

    return (kind or _Verb)(name, params=options, callback=run, help=config_type.__doc__)


def _print_result(work: Callable[[Any], Any], parsed: Any) -> None:
    """Does a verb's work and prints the file of its result, also of a refusal, which is then raised."""
    refusal = None
    with redirect_stdout(sys.stderr):
        try:
            work(parsed)
        except (GateFailed, NotEnoughEvidence) as error:
            refusal = error
    if is_main_process() and not getattr(parsed, "estimate", False):
        from posgap.storage.inputs import source

        out = source(parsed.out)
        for file in filter(None, map(out.read, RESULTS[type(parsed)])):
            click.echo(json.dumps(json.loads(file.read_text(encoding="utf-8"))))
    if refusal:
        raise refusal


def _function(target: str) -> Callable[[Any], Any]:
    """What a verb calls. Of a stage alone the frame is enough, until it finds that there is work to do."""
    if target in FRAMED:
        from posgap.stage import stage_at

        return stage_at(target)
    module, function = target.split(":")
    if target in _AFTER_INPUTS:
        from posgap.storage.inputs import with_local_paths

        return with_local_paths(lambda config: getattr(importlib.import_module(module), function).__wrapped__(config))
    return getattr(importlib.import_module(module), function)


def _at_revision(parsed: Config, revision: str) -> str:
    """The name of a config's model at a revision."""
    model = str(parsed.model)  # type: ignore[attr-defined]  # where there is this option there is a model
    if parsed.is_served("model") or os.path.isdir(model) or "@" in model or not is_hub_name(model):
        raise PosgapError(f"--revision: {shortened(model)} takes none; give the name of a model on the hub without one")
    return f"{model}@{revision}"


def _misuse(config_type: type[Config], error: ValidationError) -> str:
    """The option that is wrong, why, and what was given."""
    first = error.errors()[0]
    name, *inside = place_of_fault(first) or [""]
    is_secret = name in config_type.model_fields and SECRET in config_type.model_fields[name].metadata
    complaint = complaint_of(first)
    if not name:  # of several options together, whose values might be anything
        return complaint
    complaint += "" if is_secret else f", got {shortened(repr(first['input']))}"
    words = name if is_argument(config_type.model_fields[name]) else f"--{name}"
    return f"{'.'.join([words.replace('_', '-'), *inside])}: {complaint}"


Verbs = dict[str, tuple[type[Config], str]]  # each with its config, and where its work is
STAGES: Verbs = {
    "preflight": (config.PreflightConfig, "posgap.stages.preflight:preflight"),
    "validate": (config.ValidateConfig, "posgap.stages.validate:validate"),
    "teacher": (config.TeacherConfig, "posgap.stages.teacher:teacher"),
    "distill": (config.DistillConfig, "posgap.stages.distill:distill"),
    "train_job": (config.TrainJobConfig, "posgap.stages.train_job:train_job"),
    "scale_search": (config.ScaleSearchConfig, "posgap.stages.scale_search:scale_search"),
    "scale_apply": (config.ScaleApplyConfig, "posgap.stages.scale_apply:scale_apply"),
    "mitigate": (config.MitigateConfig, "posgap.stages.mitigate:mitigate"),
    "apply": (config.ApplyConfig, "posgap.stages.apply:apply"),
    "sweep": (config.SweepConfig, "posgap.stages.sweep:sweep"),
    "merge": (config.MergeConfig, "posgap.stages.merge:merge"),
    "grade": (config.GradeConfig, "posgap.stages.grade:grade"),
    "compare": (config.CompareConfig, "posgap.stages.compare:compare"),
    "diagnose": (config.DiagnoseConfig, "posgap.stages.diagnose:diagnose"),
    "champion": (config.ChampionConfig, "posgap.champion_sweep:champion"),
    "gate": (config.GateConfig, "posgap.cli:_gate"),
    "promote": (config.PromoteConfig, "posgap.admission:promote"),
    "watch": (config.WatchConfig, "posgap.watching:watch"),
    "data_version": (config.DataVersionConfig, "posgap.stages.data_version:data_version"),
    "report": (config.ReportConfig, "posgap.stages.report:report"),
    "rollout_predict": (config.RolloutPredictConfig, "posgap.stages.rollout_predict:rollout_predict"),
    "rollout_measure": (config.RolloutMeasureConfig, "posgap.stages.rollout_measure:rollout_measure"),
    "rollout_compare": (config.RolloutCompareConfig, "posgap.stages.rollout_compare:rollout_compare"),
    "rollout_advise": (config.RolloutAdviseConfig, "posgap.stages.rollout_advise:rollout_advise"),
    "rollout_experiment": (config.RolloutExperimentConfig, "posgap.stages.rollout_experiment:rollout_experiment"),
}

# The file in the folder of a verb that is its result, as `--json` prints it; a map over lengths has one of its own.
RESULTS: dict[type[Config], tuple[str, ...]] = {
    config.SweepConfig: ("sweep.json", "lengths.json"),
    config.MergeConfig: ("sweep.json",),
    config.GradeConfig: ("sweep.json",),
    config.CompareConfig: ("comparison.json", "lengths_comparison.json"),
    config.DiagnoseConfig: ("diagnosis.json",),
    config.MitigateConfig: ("mitigate.json",),
    config.ScaleSearchConfig: ("scaling.json",),
    config.CheckConfig: ("check.json",),
    config.GateConfig: ("gate.json",),
    config.PromoteConfig: ("promotion.json",),
}

# Those that do no more than the stage of their name; the others ask first what goes before it, or about its output.
_WITH_MORE = {"preflight", "train_job", "sweep", "gate", "promote", "watch", "report"}
# Verbs that are no stages, and whose work imports torch: what they read is looked for before.
_AFTER_INPUTS = {"posgap.distillation.planning:plan_distill", "posgap.scaling.serve_check:serve_check"}
FRAMED = {target for name, (_, target) in STAGES.items() if name not in _WITH_MORE}

PLAN: Verbs = {
    "sweep": (config.PlanConfig, "posgap.measurement.power:plan"),
    "gate": (config.PlanGateConfig, "posgap.gating.planning:plan_gate"),
    "distill": (config.PlanDistillConfig, "posgap.distillation.planning:plan_distill"),
}

POLICY: Verbs = {
    "default": (config.PolicyDefaultConfig, "posgap.gating.policy:show_default"),
    "set": (config.PolicySetConfig, "posgap.gating.policy:set_policy"),
    "show": (config.PolicyShowConfig, "posgap.gating.policy:show_policy"),
    "keygen": (config.PolicyKeygenConfig, "posgap.gating.signature:keygen"),
}

HUB: Verbs = {"push": (config.HubPushConfig, "posgap.peers.hub:push")}

PIPELINE: Verbs = {
    "compile": (config.PipelineCompileConfig, "posgap.pipelines.compilation:compile_pipeline"),
    "run": (config.PipelineRunConfig, "posgap.pipelines.local:run"),
    "upload": (config.PipelineUploadConfig, "posgap.pipelines.uploading:upload"),
    "submit": (config.PipelineSubmitConfig, "posgap.pipelines.submission:submit"),
    "lint": (config.PipelineLintConfig, "posgap.pipelines.lint:lint"),
}

SCHEDULE: Verbs = {
    "create": (config.ScheduleCreateConfig, "posgap.pipelines.schedules:create"),
    "list": (config.ScheduleListConfig, "posgap.pipelines.schedules:show"),
    "pause": (config.SchedulePauseConfig, "posgap.pipelines.schedules:pause"),
    "resume": (config.ScheduleResumeConfig, "posgap.pipelines.schedules:resume"),
    "delete": (config.ScheduleDeleteConfig, "posgap.pipelines.schedules:delete"),
}


def _gate(parsed: config.GateConfig) -> None:
    from posgap.admission import admit
    from posgap.gating.verdict import read_verdict
    from posgap.storage.cache import fetch

    verdict = read_verdict(fetch(admit(parsed)))
    if not verdict.passed:
        raise verdict.error(str(parsed.candidate))


class _Gate(_Verb):
    """`gate`, which as `gate replay FOLDER` judges again, and then takes that verb's options."""

    def __init__(self, *arguments: Any, **options: Any):
        hint = "Does a verdict follow from what it rests on? posgap gate replay FOLDER says so, offline."
        super().__init__(*arguments, **options | {"epilog": hint})

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args[:1] != ["replay"]:
            return super().make_context(info_name, args, parent, **extra)
        replay = verb("gate replay", config.GateReplayConfig, "posgap.gating.replay:replay")
        return replay.make_context(replay.name, args[1:], parent, **extra)


class _InOrder(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _group(name: str, help: str, verbs: Verbs) -> click.Group:
    group = _InOrder(name, help=help)
    for word, (config_type, target) in verbs.items():
        group.add_command(verb(word, config_type, target))
    return group


def build() -> click.Group:
    """The whole command line."""
    root = _InOrder("posgap", help=ROOT_HELP)
    # A variable POSGAP_VERSION is nobody's wish to be told the version.
    click.version_option(__version__, allow_from_autoenv=False)(root)
    root.add_command(verb("init", config.InitConfig, "posgap.start:init"))
    root.add_command(verb("doctor", config.DoctorConfig, "posgap.doctor:doctor"))
    root.add_command(config_file.command())
    root.add_command(verb("demo", config.DemoConfig, "posgap.demo.run:demo"))
    data = _InOrder("data", help="Fetch, import or make examples, and say or pick which version of them is taken.")
    make = _InOrder("make", help="Write synthetic data, or draw distractors for questions.")
    make.add_command(verb("kv", config.MakeKVConfig, "posgap.data.verbs:make_kv"))
    make.add_command(verb("qa", config.MakeQAConfig, "posgap.data.verbs:make_qa"))
    make.add_command(verb("needle", config.MakeNeedleConfig, "posgap.data.verbs:make_needle"))
    make.add_command(verb("spans", config.MakeSpansConfig, "posgap.data.verbs:make_spans"))
    make.add_command(verb("two-hop", config.MakeTwoHopConfig, "posgap.data.verbs:make_two_hop"))
    make.add_command(verb("choice", config.MakeChoiceConfig, "posgap.data.verbs:make_choice"))
    data.add_command(verb("fetch", config.FetchConfig, "posgap.data.verbs:fetch"))
    data.add_command(make)
    data.add_command(verb("import", config.ImportConfig, "posgap.data.verbs:import_examples"))
    data.add_command(verb("newest", config.NewestConfig, "posgap.data.verbs:newest"))
    data.add_command(verb("release", config.ReleaseConfig, "posgap.data.verbs:release"))
    root.add_command(data)
    root.add_command(verb("check", config.CheckConfig, "posgap.check:check"))
    root.add_command(_group("plan", "How many examples, how much memory and how many hours it takes.", PLAN))
    groups = {
        "data": data,
        "train": _InOrder("train", help="Training on a cluster."),
        "scale": _InOrder("scale", help="Search RoPE factors for a model, apply them, and see where they carry over."),
        "rollout": _InOrder("rollout", help="Why a model is biased: what of each position reaches the last token."),
    }
    for name, (config_type, target) in STAGES.items():
        *group, word = words(name)
        if group:
            root.add_command(groups[group[0]])
        kind = _Gate if name == "gate" else None
        (groups[group[0]] if group else root).add_command(verb(word, config_type, target, kind))
    root.add_command(_group("policy", "What the gate demands, in a file, or of a registered model.", POLICY))
    transfer = verb("transfer", config.ScaleTransferConfig, "posgap.transfer:scale_transfer")
    groups["scale"].add_command(transfer)
    pipeline = _group(
        "pipeline", "The Kubeflow pipeline: compile, run here or on a cluster, schedule, check.", PIPELINE
    )
    pipeline.add_command(_group("schedule", "Runs of the pipeline that start by themselves.", SCHEDULE))
    root.add_command(pipeline)
    root.add_command(_group("hub", "The Hugging Face hub.", HUB))
    root.add_command(verb("history", config.HistoryConfig, "posgap.tracking.history:show"))
    root.add_command(verb("rollback", config.RollbackConfig, "posgap.tracking.history:rollback"))
    root.add_command(verb("approve", config.ApproveConfig, "posgap.tracking.promotion:approve"))
    root.add_command(verb("gc", config.GcConfig, "posgap.tracking.garbage:collect"))
    root.add_command(verb("sync", config.SyncConfig, "posgap.tracking.sync:sync"))
    root.add_command(verb("verify", config.VerifyConfig, "posgap.storage.verification:verify"))
    root.add_command(verb("serve-check", config.ServeCheckConfig, "posgap.scaling.serve_check:serve_check"))
    return root


def words(stage: str) -> list[str]:
    """What is typed for a stage: `scale_search` is `posgap scale search`."""
    return stage.split("_")


ROOT_HELP = """Measure the position gap of a long-context language model, close it, and let a model
into the registry only when it is closed.

\b
  validate -> sweep (base) -> teacher -> distill -> sweep (candidate) -> gate -> promote
                           -> scale search -> scale apply -^

Every stage writes a folder with a manifest.json, logs to MLflow where MLFLOW_TRACKING_URI
names a server (or sqlite:///mlflow.db, a file) and, run again with the same inputs, does
nothing. What MLflow did not take is kept beside the folder; `posgap sync` sends it."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `posgap`; ends with `SystemExit`, but where several processes were launched."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("posgap | %(message)s"))
    logger = logging.getLogger("posgap")
    # Rank 0 logs at INFO, other ranks only warnings.
    logger.handlers, logger.level = [handler], logging.INFO if os.environ.get("RANK", "0") == "0" else logging.WARNING
    stop_on_termination()
    os.environ.setdefault("MPLBACKEND", "Agg")  # a command opens no window
    try:
        build().main(arguments, prog_name="posgap", standalone_mode=False, auto_envvar_prefix=config_file.PREFIX)
        code = 0
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message())
        code = 2
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "posgap"
        code = _fail(f"{error.format_message()} (see `{where} --help`)", 2)
    except OfAll as error:
        code = _fail(_with_notes(str(error), error), error.exit_code) if is_main_process() else error.exit_code
        end_together()
    except PosgapError as error:
        code = _fail(_with_notes(str(error), error), error.exit_code)
    except OSError as error:
        code = _fail(f"{error.filename or 'input/output'}: {error.strerror or error}", 2)
    except ModuleNotFoundError as error:
        missing = how_to_install(error.name or "")
        code = _fail(missing, 2) if missing else _fail(told(error), 1, "")
    except MemoryError:
        code = _fail("out of memory: lower what is read or computed at once, or take a machine with more", 1)
    except (KeyboardInterrupt, click.Abort) as stop:
        code = _fail(_with_notes("stopped", stop.__cause__ or stop), 130)  # click raises Abort from KeyboardInterrupt
    except Exception as error:
        code = _fail(told(error), 1, "")
    end(code)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redacted(with_uris(super().format(record)))


def _with_notes(message: str, error: BaseException) -> str:
    return "; ".join([message, *getattr(error, "__notes__", ())])


def _fail(message: str, code: int, kind: str = "error: ") -> int:
    """Says what went wrong, in one line without secrets; returns the exit code."""
    line = " ".join(redacted(with_uris(message)).split("\n"))
    with suppress(OSError):  # nobody listens
        click.echo(f"posgap: {kind}{line}", err=True)
    return code

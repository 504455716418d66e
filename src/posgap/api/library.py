"""posgap in Python: a sweep of a model in memory, on disk, on the hub, in the registry or behind an endpoint.

These functions ask, score, judge and draw by the same code as the stages of the command line. They write only what they
are told to, and track nothing in MLflow.
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

from posgap.api.results import LengthsResult, SweepResult
from posgap.data.choice_files import layout_of
from posgap.data.made import made_examples
from posgap.data.reading import kind_of, read_examples, with_unique_ids, write_examples
from posgap.data.retrieval_logs import RetrievalLog, is_log
from posgap.distillation.methods import label_of
from posgap.foundation.errors import BadModel, BadOption, PosgapError, shorten, suggestion
from posgap.foundation.extras import import_extra
from posgap.foundation.fields import is_endpoint
from posgap.foundation.files import parse_as
from posgap.foundation.printing import from_python
from posgap.gating.demands import Policy
from posgap.gating.verdict import Verdict, judge
from posgap.generation.application import Application, ApplicationGenerator
from posgap.generation.backends import BACKENDS
from posgap.generation.endpoint_parameters import ApplicationParameters
from posgap.generation.setup import builder_with
from posgap.measurement.filling import at_lengths
from posgap.measurement.lengths import is_of_lengths
from posgap.measurement.resumption import OpensGenerator
from posgap.measurement.sweep_run import SweepRun, open_once
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.in_force import load_model as load_mitigated
from posgap.models.factors import config_factors
from posgap.models.precision import warn_of_device
from posgap.options.sweep import SweepConfig
from posgap.scaling.scaling_file import refuse_searched_on
from posgap.storage.inputs import fetch_place, source
from posgap.storage.lineage import training_examples
from posgap.tasks.examples import AnyExample, RankedExample
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tracking.registered import RegisteredVersion
from posgap.verbs.inputs import on_this_machine, sources

if TYPE_CHECKING:
    import pandas
    from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase

Rows = Iterable[AnyExample | Mapping[str, Any]]
_SAID_OTHERWISE = ("model", "examples", "task", "out", "force", "estimate")


def examples(rows: "str | Path | pandas.DataFrame | Rows", limit: int = 0) -> list[AnyExample]:
    """Examples of rows, checked: of a file or folder, a pandas frame, a `datasets` dataset, or any rows in memory.

    A row has `question`, `answers`, `gold` and `distractors`, both of these lists of `{"title": ..., "text": ...}`
    (docs/formats.md), or the `key`, `value` and `records` of key-value retrieval; a row without an `id` has its number.
    Rows may be of a retrieval log or a trace too (docs/rag.md): `question`, `answers` and the `passages` retrieved.
    `limit` takes only the first ones; 0 takes all.

    Raises `PosgapError`, which names the row and its fault.
    """
    if isinstance(rows, str | Path):
        return read_examples(fetch_place(rows))[: limit or None]
    is_frame = hasattr(rows, "to_dict") and hasattr(rows, "columns")
    records = cast(Any, rows).to_dict("records") if is_frame else rows
    if not isinstance(records, Iterable):
        raise PosgapError(f"examples: expected a file, a frame or rows, got {type(rows).__name__}")
    numbered = enumerate(cast(Rows, records), start=1)
    checked = [e for _, e in islice(with_unique_ids(Path("examples"), _checked(numbered, is_frame)), limit or None)]
    if not checked:
        raise PosgapError("examples: there are none")
    return checked


@overload
def sweep(
    model: "str | Path | PreTrainedModel | Pipeline | Callable",
    examples: "int | str | Path | pandas.DataFrame | Rows" = 100,
    task: str = "",
    *,
    lengths: None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    quiet: bool = False,
    **options: Any,
) -> SweepResult: ...


@overload
def sweep(
    model: "str | Path | PreTrainedModel | Pipeline | Callable",
    examples: "int | str | Path | pandas.DataFrame | Rows" = 100,
    task: str = "",
    *,
    lengths: int | str | Sequence[int | str],
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    quiet: bool = False,
    **options: Any,
) -> SweepResult | LengthsResult: ...


def sweep(
    model: "str | Path | PreTrainedModel | Pipeline | Callable",
    examples: "int | str | Path | pandas.DataFrame | Rows" = 100,
    task: str = "",
    *,
    lengths: int | str | Sequence[int | str] | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    quiet: bool = False,
    **options: Any,
) -> SweepResult | LengthsResult:
    """Asks a model every example with the gold documents at every position, and returns the accuracy at each.

    `model` is a transformers model in memory, with its `tokenizer`, or a pipeline of both; a Hugging Face folder, a
    name on the hub, or a version in MLflow's registry, `models:/name@champion`; the address of an OpenAI-compatible
    endpoint, `http://...`, with the option `name` for the model if it serves several; or a function, sync or async,
    that answers a prompt, or a `question` with `passages` (docs/applications.md). `examples` is whatever
    `posgap.examples` takes, or the number of examples to make for the task. `task` defaults to rag for retrieved
    passages, else kv. `options` are those of `posgap sweep`, by their names in Python: `n_docs`, `positions`, `limit`,
    `metric`, `max_new_tokens`, `system`, `temperature`, `samples`, `label`, `batch_tokens`, ... Several `lengths`, like
    `["1k", "4k"]`, make a map of accuracy by length and depth, a `LengthsResult`.

    A model in memory stays on its device, and is unchanged afterwards. Nothing is written: for a sweep that can resume
    after an interruption use the command `posgap sweep`, and `posgap.load` for its output.

    Standard error shows how many prompts there are, the progress, and the time left; with `quiet` only warnings.
    If the logger "posgap" has a handler or a level already, these lines go there, and only there.

    Raises `PosgapError` for bad input, and if more than `max_unanswered` percent of the prompts went unanswered.
    """
    unknown = sorted(set(options) & set(_SAID_OTHERWISE))
    if unknown:
        raise BadOption(
            f"posgap.sweep: {unknown[0]} is not an option here (`posgap.sweep(model, examples, task, ...)`)"
        )
    known = [*SweepConfig.model_fields, "name", "tokenizer", "quiet"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        meant = suggestion(unknown[0], known, "`posgap sweep --help-all` lists them", at_most=1)
        raise BadOption(f"posgap.sweep: no option is called {shorten(unknown[0])}; {meant}")
    with ExitStack() as stack:
        stack.enter_context(from_python(quiet))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="posgap-")))
        asked_of, tokenizer = _parts(model, tokenizer)
        given = [] if isinstance(examples, int) else _read_rows(examples)
        task = task or ("rag" if given and isinstance(given[0], RankedExample) else "kv")
        chosen = {"task": task, "examples": folder / "examples.jsonl", "out": folder / "sweep"} | options
        chosen["lengths"] = lengths or []
        config = parse_as(SweepConfig, _named(asked_of, chosen), "posgap.sweep")
        everything = given
        if isinstance(examples, int):
            everything = list(made_examples(TASKS[config.task], examples, config.n_docs, config.seed))
        rows = everything[: config.limit or None]
        write_examples(config.examples, rows)
        if isinstance(asked_of, str | Path):
            asked = _by_name(config, tokenizer)
        elif isinstance(asked_of, Application):
            asked = _application(asked_of, config)
        else:
            from posgap.generation.transformers import borrow_model  # torch, which endpoints do without

            stack.enter_context(borrow_model(asked_of))
            asked = _in_memory(asked_of, tokenizer, config)
        refuse_searched_on(Path(asked.config.model), rows)
        config = asked.config
        results = list[SweepResult]()
        for builder in at_lengths(config.lengths, config.depths, config.seed, asked.builder, everything):
            if builder.fill:
                config = config.model_copy(update={"lengths": [builder.fill.length]})
            results.append(_sweep_prompts(asked, config, builder, rows))
    if len(results) == 1:
        return results[0]
    assert isinstance(builder, PromptBuilder)
    return LengthsResult(results, builder.context, config.most_gap)


def _sweep_prompts(
    asked: "_Model", config: SweepConfig, builder: TextPromptBuilder, rows: Sequence[AnyExample]
) -> SweepResult:
    """Sweeps a model by prompts of this builder."""
    sweep_run = SweepRun.plan(config.sweep_settings(), builder, rows, asked.digest)
    sweep_run.run(asked.opens)
    if sweep_run.shortfall:
        raise PosgapError(f"{sweep_run.shortfall} (max_unanswered)")
    label = config.label or label_of(config.model, config.mitigation)
    figures = sweep_run.summarize(label, asked.factors, asked.device)
    return SweepResult(figures, sweep_run.predictions, sorted(training_examples(config.model)), rows)


def load(folder: str | Path) -> SweepResult | LengthsResult:
    """The sweep in a folder that `posgap sweep` or `merge` wrote, here or in S3, or those at several lengths.

    Raises `PosgapError` if there is none.
    """
    there = Path(fetch_place(folder))
    return LengthsResult.read(there) if is_of_lengths(there) else SweepResult.read(there)


def gate(
    candidate: SweepResult | str | Path,
    base: SweepResult | str | Path | None = None,
    champion: SweepResult | str | Path | None = None,
    **demands: Any,
) -> Verdict:
    """Judges a sweep against the sweeps of the `base` model and of today's `champion`, as `posgap gate` does.

    Sweeps are results or folders. `demands` are what a policy says (docs/gate.md): `max_gap`, `min_mean`,
    `least_examples`, ... Without a base those rules alone are asked that need none. The verdict's `outcome` is
    "admitted", "refused" or "not enough evidence", and `rules` has each rule's figures and sentence.

    Raises `PosgapError` if the sweeps were not asked alike, or a model learnt the examples.
    """
    policy = parse_as(Policy, demands, "posgap.gate")
    with tempfile.TemporaryDirectory(prefix="posgap-") as place:

        def folder(swept: SweepResult | str | Path | None, role: str) -> Path | None:
            if not isinstance(swept, SweepResult):
                return None if swept is None else fetch_place(swept)
            written = Path(place) / role
            written.mkdir()
            swept.write_evidence(written)
            return written

        judged = folder(candidate, "candidate")
        if judged is None:
            raise BadOption("posgap.gate: the candidate's sweep is missing")
        read_sweep(judged).require_model("posgap.gate: the candidate")
        return judge(judged, folder(base, "base"), folder(champion, "champion"), policy)


def _checked(
    numbered: Iterator[tuple[int, AnyExample | Mapping[str, Any]]], is_frame: bool
) -> Iterator[tuple[int, AnyExample]]:
    for number, row in numbered:
        fields = _fields(row) if isinstance(row, Mapping) else {}
        layout = layout_of(fields)
        if layout or is_log(fields, is_frame):
            others = ((at, _fields(each) if isinstance(each, Mapping) else each) for at, each in numbered)
            rows = chain([(number, fields)], others)
            yield from layout.usable_examples(rows, "examples") if layout else RetrievalLog("examples").examples(rows)
            return
        yield number, _example(row, number)


def _example(row: AnyExample | Mapping[str, Any], number: int) -> AnyExample:
    if isinstance(row, AnyExample):
        return row
    where = f"examples, row {number}"
    if not isinstance(row, Mapping):
        raise PosgapError(f"{where}: expected an example or a mapping, got {type(row).__name__}")
    fields = _fields(row)
    return parse_as(kind_of(fields), {"id": str(number), **fields}, where)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    # Frames and datasets have an empty cell for a field of other rows.
    return {name: _plain(value) for name, value in row.items() if value is not None and not _is_nan(value)}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _plain(value: Any) -> Any:
    """Returns the value with lists instead of numpy arrays, which data frames hold."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(part) for part in value] if isinstance(value, list) else value


_read_rows = examples  # which `sweep` has a parameter of this name of


def _named(model: "str | Path | PreTrainedModel | Application", options: dict[str, Any]) -> dict[str, Any]:
    """The options with the model's name; of an endpoint's address with the name there, if it is given."""
    name = options.pop("name", "")
    if isinstance(model, Application):
        return options | {"model": model.name}
    if not isinstance(model, str | Path):
        return options | {"model": name or str(model.config._name_or_path or type(model).__name__)}
    return options | {"model": f"{model}#{name}" if name and is_endpoint(model) else str(model)}


def _parts(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Returns model and tokenizer, also of a pipeline. Raises `PosgapError` if they cannot be asked."""
    if isinstance(model, str | Path):
        return model, tokenizer
    if callable(model) and not any(hasattr(model, name) for name in ("generate", "tokenizer", "state_dict")):
        return Application(model), None
    if hasattr(model, "tokenizer") and hasattr(model, "model") and not hasattr(model, "generate"):
        model, tokenizer = model.model, tokenizer or model.tokenizer
    if not hasattr(model, "generate") or not hasattr(model, "generation_config"):
        raise PosgapError(
            "posgap.sweep: expected a name, an address, a function or a causal language model of transformers, got "
            f"{type(model).__name__}"
        )
    if not hasattr(tokenizer, "pad_token_id"):
        raise BadOption("posgap.sweep: a model in memory needs its tokenizer, as `tokenizer`")
    if model.device.type == "meta":
        raise BadModel("posgap.sweep: the model has no weights (it is on the meta device)")
    return model, tokenizer


class _Model(NamedTuple):
    """A model to be asked: its config, the builder of its prompts, what is known of it, and the function that opens it
    for `SweepRun.run`."""

    config: SweepConfig
    builder: TextPromptBuilder
    factors: Sequence | None
    digest: str = ""
    opens: OpensGenerator | None = None
    device: str = ""


def _by_name(config: SweepConfig, tokenizer: "PreTrainedTokenizerBase | None") -> _Model:
    if tokenizer is not None:
        raise PosgapError("posgap.sweep: a tokenizer goes with a model in memory; a name brings its own")
    inputs = sources(config)
    backend = BACKENDS[config.backend]
    if backend.local:
        import_extra("torch")
    config = on_this_machine(config, inputs).resolve_auto()
    factors = None
    if backend.local:
        from posgap.models.loading import load_config

        factors = config_factors(load_config(config.model))
    builder = config.builder()
    return _Model(config, builder, factors, inputs["model"].digest(), open_once(config.access(), builder))


def _application(application: Application, config: SweepConfig) -> _Model:
    builder = config.builder()
    generator = ApplicationGenerator(application, ApplicationParameters.of(config), builder)
    return _Model(config, builder, None, "", lambda: generator)


def _in_memory(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", config: SweepConfig) -> _Model:
    if config.backend not in ("auto", "transformers"):
        raise BadOption(f"backend {config.backend}: leave `backend` out: only transformers can ask a model in memory")
    from posgap.generation.transformers import TransformersGenerator
    from posgap.models.loading import context_length, with_padding_token

    pads = with_padding_token(tokenizer)
    builder = builder_with(pads, context_length(model.config, pads), config.wording(), config.limits())
    generator = TransformersGenerator(model, pads, config.batch_tokens, device=str(model.device))
    dtype = str(model.dtype).removeprefix("torch.")
    config = config.model_copy(update={"dtype": dtype, "backend": "transformers"})
    return _Model(config, builder, config_factors(model.config), "", lambda: generator, model.device.type)


def load_model(path: str, dtype: str = "auto", compute: str = "") -> "PreTrainedModel":
    """Loads a causal language model, with its scaling if it has one, in evaluation mode, on the CPU.

    `path` is a Hugging Face folder, a name on the hub, or a version in MLflow's registry, `models:/name@champion` or
    `models:/name/3`. `dtype` of its parameters: "auto" is the precision of a registered version's sweep, else bfloat16
    on a GPU and float32 elsewhere; "stored" is the file's. `compute` is the precision of the arithmetic if autocast
    changes it.

    Raises `PosgapError` if there is no such model, or its weights are damaged.
    """
    there = source(path)
    if dtype == "auto" and isinstance(there, RegisteredVersion):
        dtype = there.dtype
        warn_of_device(path, there.device)
    return load_mitigated(str(there.fetch()), dtype, compute)

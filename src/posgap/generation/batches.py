"""The requests of a sweep as files for a provider's batch, and the answers that come back from there.

Both are generators, so a sweep makes the batch's prompts and reads its answers as it does with an endpoint. One writes
requests and answers nothing. The other returns the answers in its files and leaves out the rest.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_of, read_rows, write_text
from posgap.generation.answer_forms import as_completion
from posgap.generation.endings import before_stop
from posgap.generation.endpoint_parameters import EndpointParameters
from posgap.generation.generator import Completion, Outcome, Sampling
from posgap.generation.served import MUST_STAY, EndpointIdentity
from posgap.generation.wire import Fault, read_answer, read_fault
from posgap.tasks.framing import Framing
from posgap.tasks.prompts import Prompt

Json = dict[str, Any]


class BatchFormat(NamedTuple):
    """A provider's format for requests: at most `max_requests` and `max_bytes` in a file."""

    max_requests: int = 10**9
    max_bytes: int = 10**12


# OpenAI's and Anthropic's limits as of 28 November 2026.
FORMATS = {
    "openai": BatchFormat(50_000, 200_000_000),
    "anthropic": BatchFormat(100_000, 256_000_000),
    "jsonl": BatchFormat(),
    "lm-eval": BatchFormat(),
}
LM_EVAL_TASK = "posgap_position"


class Request(NamedTuple):
    """A request by its id, which is a digest of all that it asks: equal prompts are one request."""

    id: str
    body: Json


@dataclass(frozen=True)
class RequestMaker:
    """Makes the requests that an endpoint would be sent: the prompts' texts and the settings of generation.

    It sends no stop strings: answers are cut at them afterwards, as in a direct sweep of an endpoint.
    """

    model: str
    parameters: EndpointParameters
    framing: Framing

    def request(self, prompt: Prompt, sampling: Sampling) -> Request:
        """Returns the request of a prompt, in the form of OpenAI's chat or plain completions."""
        is_chat = self.parameters.endpoint == "chat"
        what = {"messages": self.framing.messages(prompt.text)} if is_chat else {"prompt": prompt.text}
        ours = {"max_tokens": sampling.limit, "temperature": sampling.temperature, "seed": sampling.seed_of(prompt)}
        arguments = {"chat_template_kwargs": dict(self.framing.arguments)} if self.framing.arguments else {}
        asked = {name: value for name, value in (ours | self.parameters.body | arguments).items() if value is not None}
        body = {"model": self.model, **what, **asked}
        return Request(f"posgap-{digest_of([body, prompt.sample])[:32]}", body)


@dataclass
class RequestWriter:
    """Writes the request of each prompt into files of a folder, each once, and answers nothing."""

    maker: RequestMaker
    format: str
    folder: Path
    written: dict[str, None] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        limits = FORMATS[self.format]
        lines = list[str]()
        size = 0
        for group in groups:
            for prompt in group:
                request = self.maker.request(prompt, sampling)
                if request.id in self.written:
                    continue
                self.written[request.id] = None
                line = json.dumps(_FORMS[self.format](request), ensure_ascii=False)
                if lines and (len(lines) == limits.max_requests or size + len(line.encode()) + 64 > limits.max_bytes):
                    self._write_file(lines)
                    lines = []
                    size = 0
                lines.append(line)
                size += len(line.encode()) + 2
        if lines:
            self._write_file(lines)
        if self.format == "lm-eval" and self.files:
            self._write_task(sampling)
        yield from ()

    def _write_task(self, sampling: Sampling) -> None:
        """Writes the task of lm-evaluation-harness that asks the requests. Its answers are cut and scored by posgap."""
        system = self.maker.framing.system
        task = {
            "task": LM_EVAL_TASK,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": [str(file.absolute()) for file in self.files]}},
            "test_split": "test",
            "output_type": "generate_until",
            **({"description": "{{system}}"} if system else {}),
            "doc_to_text": "{{prompt}}",
            "doc_to_target": "",
            "generation_kwargs": {
                "until": [],
                "max_gen_toks": sampling.limit,
                "do_sample": sampling.temperature > 0,
                "temperature": sampling.temperature,
            },
            "metric_list": [{"metric": "bypass"}],
        }
        file = self.folder / f"{LM_EVAL_TASK}.yaml"
        write_text(file, json.dumps(task, indent=1) + "\n")
        self.files.append(file)

    def _write_file(self, lines: Sequence[str]) -> None:
        is_one_object = self.format == "anthropic"
        name = f"requests-{len(self.files) + 1:03}.{'json' if is_one_object else 'jsonl'}"
        text = '{"requests": [\n' + ",\n".join(lines) + "\n]}" if is_one_object else "\n".join(lines)
        write_text(self.folder / name, text + "\n")
        self.files.append(self.folder / name)


def _openai(request: Request) -> Json:
    body = dict(request.body)
    is_chat = "messages" in body
    if is_chat:  # the newer name, without which newer models refuse a request
        body["max_completion_tokens"] = body.pop("max_tokens")
    return {
        "custom_id": request.id,
        "method": "POST",
        "url": f"/v1/{'chat/' * is_chat}completions",
        "body": body,
    }


def _anthropic(request: Request) -> Json:
    params = {name: value for name, value in request.body.items() if name != "seed"}
    if "messages" not in params:
        raise PosgapError("--batch-format anthropic: has only chats; leave out --endpoint completions")
    system = [each["content"] for each in params["messages"] if each["role"] == "system"]
    params["messages"] = [each for each in params["messages"] if each["role"] != "system"]
    return {"custom_id": request.id, "params": params | ({"system": system[0]} if system else {})}


def _lm_eval(request: Request) -> Json:
    messages = request.body.get("messages") or [{"content": request.body["prompt"]}]
    system = messages[0]["content"] if len(messages) > 1 else ""
    return {"id": request.id, "system": system, "prompt": messages[-1]["content"]}


_FORMS = {
    "openai": _openai,
    "anthropic": _anthropic,
    "jsonl": lambda request: {"id": request.id, **request.body},
    "lm-eval": _lm_eval,
}


@dataclass
class RequestIds:
    """Notes the ids of the requests that prompts have, and answers nothing."""

    maker: RequestMaker
    ids: set[str] = field(default_factory=set)

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        for group in groups:
            self.ids.update(self.maker.request(prompt, sampling).id for prompt in group)
        yield from ()


class _Record(NamedTuple):
    """An answer in a file: its place, and an OpenAI completion or whatever came instead."""

    where: str
    body: Json | None
    fault: Fault | None


class AnswerFiles:
    """Answers prompts from files of a batch's answers, in any order; prompts without an answer are left out.

    Files are OpenAI's or Anthropic's results, lm-evaluation-harness' samples, or lines with `id` and `text`. Raises
    `PosgapError` if an id is there twice, or if models of several names answered and `identity` forbids that.
    """

    def __init__(self, files: Sequence[Path], maker: RequestMaker):
        self.maker = maker
        self.records: dict[str, _Record] = {}
        models: dict[str, None] = {}
        fingerprints: dict[str, None] = {}
        for file in files:
            for number, row in read_rows(file):
                where = f"{file}:{number}"
                name, record = _read_record(row, where)
                if name in self.records:
                    raise PosgapError(f"{where}: the id {name} is already at {self.records[name].where}; leave one out")
                self.records[name] = record
                for names, key in ((models, "model"), (fingerprints, "system_fingerprint")):
                    if record.body and isinstance(record.body.get(key), str) and record.body[key]:
                        names[record.body[key]] = None
        identity = maker.parameters.identity
        if len(models) > 1 and "model" in MUST_STAY[identity]:
            raise PosgapError(
                f"the answers come from several models ({', '.join(models)}); --identity any accepts them"
            )
        self.said = EndpointIdentity(models=tuple(models), fingerprints=tuple(fingerprints))
        self.served = EndpointIdentity()

    def require_same(self) -> None:
        """Does nothing: what answered is known from the files alone."""

    def require_asked(self, ids: set[str]) -> None:
        """Raises `PosgapError` if a file has an answer to none of the requests with these ids."""
        unknown = [name for name in self.records if name not in ids]
        if unknown:
            where = self.records[unknown[0]].where
            raise PosgapError(
                f"{where}: the id {shorten(unknown[0])} belongs to no request of this sweep ({len(unknown)} of "
                f"{len(self.records)} ids do not); give the options that wrote the requests"
            )

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        self.served = EndpointIdentity.combine([self.served, self.said]) or self.said
        for index, group in enumerate(groups):
            for at, prompt in enumerate(group):
                record = self.records.get(self.maker.request(prompt, sampling).id)
                if record:
                    yield index, at, _completion(record, prompt, sampling)


def _completion(record: _Record, prompt: Prompt, sampling: Sampling) -> Completion:
    """Returns a record's answer to the prompt, read like an endpoint's."""
    if record.body is None:
        return _of_fault(record.fault)
    completion = completion_of(record.body, prompt.text, sampling.opened)
    text = before_stop(completion.text, sampling.stop)
    return completion._replace(text=text, cut=completion.cut and text == completion.text)


def completion_of(body: Json, asked: str, opened: str | None = None) -> Completion:
    """Returns what the body of an OpenAI completion answers to a prompt; one that holds no message has failed."""
    try:
        answer = read_answer(json.dumps(body).encode(), opened, asked)
    except ValueError as error:
        return Completion("", [], "failed", reason=f"is not an answer: {error}")
    return _of_fault(answer) if isinstance(answer, Fault) else answer.completion


def _of_fault(fault: Fault | None) -> Completion:
    outcome: Outcome = "refused" if fault and fault.is_of_a_filter else "failed"
    return Completion("", [], outcome, reason=str(fault))


def _read_record(row: Any, where: str) -> tuple[str, _Record]:
    """Returns the id and the record of a line."""
    fields = row if isinstance(row, Mapping) else {}
    doc = fields.get("doc")
    name = fields.get("custom_id") or (doc.get("id") if isinstance(doc, Mapping) else fields.get("id"))
    if not isinstance(name, str) or not name:
        raise PosgapError(f"{where}: has no `custom_id` and no `id`; give the answers as the batch returned them")
    body, fault = None, None
    try:
        body, fault = _read_answer(fields)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise PosgapError(
            f"{where}: {name}: is not an answer of OpenAI, Anthropic or lm-evaluation-harness, and has no `text`"
        ) from None
    return name, _Record(where, body, fault)


def _read_answer(fields: Mapping[str, Any]) -> tuple[Json | None, Fault | None]:
    """Returns (the completion in a line, None), or (None, the fault in its place)."""
    if "resps" in fields:
        return as_completion({"text": fields["resps"][0][0]}), None
    if "result" in fields:
        result = fields["result"]
        if result["type"] == "succeeded":
            return as_completion(result["message"]), None
        return None, _fault(400 if result["type"] == "errored" else 0, result.get("error") or result["type"])
    if fields.get("response"):
        response = fields["response"]
        status = int(response["status_code"])
        return (as_completion(response["body"]), None) if status < 300 else (None, _fault(status, response["body"]))
    if fields.get("error"):
        return None, _fault(0, fields["error"])
    return as_completion(fields), None


def _fault(status: int, error: Any) -> Fault:
    document: dict[str, Any] = error if isinstance(error, dict) else {"error": str(error)}
    while isinstance(document.get("error"), dict) and isinstance(document["error"].get("error"), dict):
        document = document["error"]
    return read_fault(status, json.dumps(document).encode(), document)

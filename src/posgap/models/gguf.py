"""GGUF files, the format of llama.cpp, as folders that transformers loads: dequantised, in float32.

The metadata of a file say what config, tokenizer and chat template its model has, and which tokens end an answer.
"""

import contextlib
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from posgap.foundation.errors import PosgapError, first_line
from posgap.foundation.extras import needed
from posgap.foundation.files import digest, write_json
from posgap.models import GGUF_RECORD
from posgap.models.loading import require_causal_family, require_whole, save_model, without_reports
from posgap.models.memory import require_disk, require_memory

log = logging.getLogger(__name__)
_MAGIC = b"GGUF"
_BYTES = torch.float32.itemsize  # a parameter, on the disk and in memory
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # of a text, of a turn, of a message


class Header(NamedTuple):
    """What a file says of itself. `types` counts the tensors of each type, `parameters` their elements; `end_ids` are
    the tokens after which llama.cpp stops."""

    architecture: str
    parameters: int
    types: dict[str, int]
    end_ids: list[int]

    @property
    def phrase(self) -> str:
        """In words."""
        return f"{' and '.join(self.types)}, {self.parameters / 1e6:.1f} million parameters"


def convert(file: Path, out: Path, name: str) -> None:
    """Writes the model of a GGUF file as a Hugging Face folder in float32; messages call the file `name`.

    Raises `PosgapError` before it begins where memory or disk do not suffice, and where the file is damaged, one part
    of several, or of a kind that transformers does not read, or not wholly.
    """
    from transformers import AutoModelForCausalLM  # late: it takes seconds, and a file may be refused before

    header = read_header(file, name)
    size = _BYTES * header.parameters
    log.info(
        "%s: GGUF (%s): dequantising to float32, which takes %.1f GB of memory and of disk, once",
        name,
        header.phrase,
        size / 1e9,
    )
    require_memory(name, size, "dequantising it to float32")
    require_disk(name, out.parent, size, "dequantising it to float32", "set POSGAP_CACHE to a folder of another disk")
    with _alone(file) as where, without_reports(), contextlib.redirect_stderr(io.StringIO()):
        try:
            config = AutoConfig.from_pretrained(**where)
            require_causal_family(name, config)
            tokenizer = AutoTokenizer.from_pretrained(**where)
            loader: Any = AutoModelForCausalLM  # of whose results mypy knows but the model alone
            model, report = loader.from_pretrained(
                **where, **_dequantised(), dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True
            )
        except (PosgapError, MemoryError):
            raise
        except Exception as error:  # of several readers, each with exceptions of its own
            reason = first_line(error)
            raise PosgapError(
                f"{name}: transformers does not read this GGUF file ({header.architecture}): {reason}; give the "
                "model's folder in safetensors"
            ) from None
    require_whole(name, report)
    # transformers takes what it has dequantised for quantised still, and saves nothing such.
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    ends = _end_ids(header, tokenizer)
    model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends or None
    with contextlib.redirect_stderr(io.StringIO()):
        save_model(model, tokenizer, out)
    about = {"architecture": header.architecture, "parameters": header.parameters, "types": header.types}
    write_json(out / GGUF_RECORD, {"sha256": digest(file.resolve())} | about)


def read_header(file: Path, name: str) -> Header:
    """What a file says of itself. Raises `PosgapError` as `convert` does, but for what the weights alone show."""
    gguf = needed("gguf")
    try:
        with open(file, "rb") as opened:
            magic = opened.read(len(_MAGIC))
    except OSError as error:
        raise PosgapError(f"{name}: cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise PosgapError(f"{name}: is no GGUF file, whatever its name says; copy or download it again")
    try:
        reader = gguf.GGUFReader(file)
        said: Mapping[str, Any] = {key: field.contents() for key, field in reader.fields.items() if _is_short(field)}
        types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
        parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except Exception as error:  # numpy's and Python's of any kind, as what is read is taken for a count or a place
        reason = first_line(error)
        raise PosgapError(
            f"{name}: the GGUF file is cut off or damaged ({reason}); copy or download it again"
        ) from None
    architecture = str(said.get("general.architecture", "of no architecture"))
    if (parts := said.get("split.count", 1)) > 1:
        raise PosgapError(
            f"{name}: is one of {parts} parts of a model; join them (llama-gguf-split --merge FIRST-PART WHOLE.gguf) "
            "and give the whole"
        )
    if reason := _is_left_out(said, architecture, {tensor.name for tensor in reader.tensors}):
        raise PosgapError(f"{name}: {reason}, which transformers leaves out as it reads GGUF; give the model's folder")
    ends = [said.get(f"tokenizer.ggml.{end}") for end in _ENDS]
    return Header(architecture, parameters, dict(types.most_common()), [end for end in ends if end is not None])


def _is_short(field: Any) -> bool:
    """Whether a field holds one value, and no vocabulary."""
    return len(field.data) == 1


def _is_left_out(said: Mapping[str, Any], architecture: str, tensors: set[str]) -> str:
    """What of a file changes its positions and reaches no config; empty where nothing does. transformers 5.23 reads
    the base of RoPE alone, so Llama 3.1 would be another model, silently."""
    if "rope_freqs.weight" in tensors:
        return "scales each frequency of RoPE (rope_freqs.weight)"
    if any(name.startswith("rope_factors_") for name in tensors):
        return "scales each frequency of RoPE (rope_factors)"
    kind = said.get(f"{architecture}.rope.scaling.type", "none")
    scaled = said.get(f"{architecture}.rope.scaling.factor", said.get(f"{architecture}.rope.scale_linear", 1.0))
    if architecture != "gpt-oss" and (kind != "none" or scaled != 1.0):  # of which transformers reads it
        return f"scales RoPE ({kind if kind != 'none' else 'linear'}, {scaled:g})"
    return ""


def _end_ids(header: Header, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end an answer: those that the file names, and the one that its chat template closes a turn with,
    where that is another (Gemma's `<end_of_turn>`)."""
    ends = [tokenizer.eos_token_id, *header.end_ids]
    if tokenizer.chat_template:
        marks, answer = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder), "posgap"
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        with contextlib.suppress(Exception):  # a template may refuse what it is shown; then what is named must do
            written = str(tokenizer.apply_chat_template(turns, tokenize=False))
            closing = tokenizer(written.rpartition(answer)[2], add_special_tokens=False)["input_ids"]
            ends += [token for token in closing if token in marks][:1]
    return [*dict.fromkeys(int(end) for end in ends if end is not None)]


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[dict[str, Any]]:
    """How transformers is told of a file: in a folder of its own, in which nothing else is taken for a part of the
    model, and under the ending that transformers looks for."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").symlink_to(file.resolve())
        yield {
            "pretrained_model_name_or_path": folder,
            "gguf_file": "model.gguf",
            "trust_remote_code": False,
            "local_files_only": True,
        }


def _dequantised() -> dict[str, Any]:
    """The option by which transformers dequantises what it could keep packed; older versions have no other way."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}

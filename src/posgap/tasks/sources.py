"""Public data files: where they are, and how they come into the cache."""

import http.client
import logging
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import atomic, digest
from posgap.locations import cache_folder

log = logging.getLogger(__name__)
SECONDS = 60  # without a byte, after which a download is given up


@dataclass(frozen=True)
class Source:
    """A file on the web, `format` as `posgap data import` names it, and its sha256 where that is known."""

    url: str
    format: str
    sha256: str = ""

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[-1]


# Pinned to a commit, so that they cannot change.
_LITM = "https://raw.githubusercontent.com/nelson-liu/lost-in-the-middle/29b8a6d042ce29abccee3db1a73171a107d7e6af"
_MUSIQUE = "https://huggingface.co/datasets/dgslibisey/MuSiQue/resolve/c8f4f8c9465fb69d31a8eae894c3fd509c4ca321"
_DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
SOURCES = {
    "kv-75": Source(
        f"{_LITM}/kv_retrieval_data/kv-retrieval-75_keys.jsonl.gz",
        "litm-kv",
        "eb6d61fc3473349f2b86df76757c6ab659cc929d907d24caf1c69928e03f6203",
    ),
    "kv-140": Source(
        f"{_LITM}/kv_retrieval_data/kv-retrieval-140_keys.jsonl.gz",
        "litm-kv",
        "66d54aae7e38779da482895ccd538faaf5309f144e54f30dc530a95091581fa1",
    ),
    "kv-300": Source(f"{_LITM}/kv_retrieval_data/kv-retrieval-300_keys.jsonl.gz", "litm-kv"),
    **{
        f"nq-{n}": Source(
            f"{_LITM}/qa_data/{n}_total_documents/nq-open-{n}_total_documents_gold_at_0.jsonl.gz", "litm-qa"
        )
        for n in (10, 20, 30)
    },
    "nq-oracle": Source(
        f"{_LITM}/qa_data/nq-open-oracle.jsonl.gz",
        "litm-qa",
        "6a7f72b846f663a133ef952244e5a4e43f06bcf190afe34e8fbe687ce0d1653e",
    ),
    "nq-dpr": Source(f"{_DPR}/biencoder-nq-dev.json.gz", "dpr"),
    "triviaqa": Source(f"{_DPR}/biencoder-trivia-dev.json.gz", "dpr"),
    "webq": Source(f"{_DPR}/biencoder-webquestions-dev.json.gz", "dpr"),
    "hotpotqa": Source(
        "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
        "hotpotqa",
        "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
    ),
    "musique": Source(f"{_MUSIQUE}/musique_ans_v1.0_dev.jsonl", "musique"),
}


def fetched(source: Source) -> Path:
    """The source's file in the cache, downloaded unless it is there.

    A file whose sha256 is not the pinned one is not kept. `PosgapError` says what went wrong.
    """
    path = cache_folder() / source.file
    if path.is_file() and source.sha256 in ("", digest(path)):
        log.info("%s: in the cache", path)
        return path
    with atomic(path) as partial:
        _download(source.url, partial)
        found = digest(partial)
        if source.sha256 not in ("", found):
            raise PosgapError(f"{source.url}: its sha256 is {found}, not {source.sha256}; the file was not kept")
    log.info("%s: %.1f MB, sha256 %s", path, path.stat().st_size / 1e6, found)
    return path


def _download(url: str, path: Path) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "posgap"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer, open(path, "wb") as file:
            shutil.copyfileobj(answer, file)
            length = answer.headers.get("Content-Length")
    except urllib.error.HTTPError as error:
        error.close()
        raise PosgapError(f"{url}: cannot be downloaded: HTTP {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise PosgapError(f"{url}: cannot be downloaded ({reason}); is there a network?") from None
    if length and int(length) != path.stat().st_size:
        raise PosgapError(f"{url}: the download broke off after {path.stat().st_size} of {length} bytes; try again")

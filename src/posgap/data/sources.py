"""Public data files: their addresses, formats and checksums."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A file on the web, or the `member` of a zip archive there; `format` is its name in `posgap data import`.

    `checksum` is that of the downloaded file, as "sha256:...", "md5:..." or "git:..." (a blob's id); empty if none is
    published.
    """

    url: str
    format: str
    checksum: str = ""
    member: str = ""

    @property
    def file(self) -> str:
        """The file's name in the cache."""
        name = self.url.partition("?")[0].rsplit("/", 1)[-1]
        return f"{name.removesuffix('.zip')}-{self.member}" if self.member else name


# Pinned to a commit, so that the files cannot change; the git ids are from that commit's tree.
_LITM = "https://raw.githubusercontent.com/nelson-liu/lost-in-the-middle/29b8a6d042ce29abccee3db1a73171a107d7e6af"
_MUSIQUE = "https://huggingface.co/datasets/dgslibisey/MuSiQue/resolve/c8f4f8c9465fb69d31a8eae894c3fd509c4ca321"
# Addresses from DPR's dpr/data/download_data.py; the checksums of the first two files are from ir_datasets.
_DPR = "https://dl.fbaipublicfiles.com/dpr/data/retriever"
_QA_IDS = {
    10: "eff71009ef7056aae77733d6ee8cf4614f63756e",
    20: "19d062a7c970798aa44f47b708d449ee736c046a",
    30: "a99c95443cf161e1b2f5310bcb47256de1dbd403",
}
SOURCES = {
    "kv-75": Source(
        f"{_LITM}/kv_retrieval_data/kv-retrieval-75_keys.jsonl.gz",
        "litm-kv",
        "sha256:eb6d61fc3473349f2b86df76757c6ab659cc929d907d24caf1c69928e03f6203",
    ),
    "kv-140": Source(
        f"{_LITM}/kv_retrieval_data/kv-retrieval-140_keys.jsonl.gz",
        "litm-kv",
        "sha256:66d54aae7e38779da482895ccd538faaf5309f144e54f30dc530a95091581fa1",
    ),
    "kv-300": Source(
        f"{_LITM}/kv_retrieval_data/kv-retrieval-300_keys.jsonl.gz",
        "litm-kv",
        "git:c25c0d5a1c1fcc029996477aed1c68aecaa2a002",
    ),
    **{
        f"nq-{n}": Source(
            f"{_LITM}/qa_data/{n}_total_documents/nq-open-{n}_total_documents_gold_at_0.jsonl.gz",
            "litm-qa",
            f"git:{id}",
        )
        for n, id in _QA_IDS.items()
    },
    "nq-oracle": Source(
        f"{_LITM}/qa_data/nq-open-oracle.jsonl.gz",
        "litm-qa",
        "sha256:6a7f72b846f663a133ef952244e5a4e43f06bcf190afe34e8fbe687ce0d1653e",
    ),
    "nq-dpr": Source(f"{_DPR}/biencoder-nq-dev.json.gz", "dpr", "md5:2640483dbe0df7ae29c6da419c551a80"),
    "triviaqa": Source(f"{_DPR}/biencoder-trivia-dev.json.gz", "dpr", "md5:d559dffe09acfe5a6370adea55b8abf2"),
    "webq": Source(f"{_DPR}/biencoder-webquestions-dev.json.gz", "dpr"),
    "hotpotqa": Source(
        "http://curtis.ml.cmu.edu/datasets/hotpot/hotpot_dev_distractor_v1.json",
        "hotpotqa",
        "sha256:4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
    ),
    # The same bytes as in the authors' archive, which Google Drive does not let programs download.
    "musique": Source(
        f"{_MUSIQUE}/musique_ans_v1.0_dev.jsonl",
        "musique",
        "sha256:15fa63794d18a94ce12411aca6e2327e65b6e83b0b1490efab3f1962e48abf3b",
    ),
    "2wiki": Source(
        "https://www.dropbox.com/s/ms2m13252h6xubs/data_ids_april7.zip?dl=1",
        "2wiki",
        "sha256:95df2bf56fdabe034e27aebc580e02264232203cf52552f9efe8a919e5529eef",
        "dev.json",
    ),
}

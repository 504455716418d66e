"""Public data files: their addresses, formats and checksums."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A file on the web, or the `member` of a zip archive there; `format` is its name in `posgap data import`.

    `checksum` is the downloaded file's, as "sha256:...", "md5:..." or "git:..." (a blob's id); empty if none is
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


# Files of Lost in the Middle and of MuSiQue are pinned to a commit; git ids are from that commit's tree. Addresses of
# DPR's files are from its dpr/data/download_data.py, the checksums of two of them from ir_datasets. MuSiQue's has the
# same bytes as in the authors' archive, which Google Drive does not let programs download.
SOURCES = {
    name: Source(**fields)
    for name, fields in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}

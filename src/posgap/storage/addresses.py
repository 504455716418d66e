"""Files at addresses that are only read, through fsspec: `hf://datasets/owner/name/file`, `gs://`, `az://`, `https://`.

Credentials come from the usual places of the package that reads an address: HF_TOKEN, Google's and Azure's own.
"""

import os
import tempfile
from pathlib import Path

from posgap.foundation.errors import BadOption, MissingPackage, NotFound, Unreadable, first_line
from posgap.foundation.files import digest_path
from posgap.foundation.locations import READERS, addressed_cache


def download_address(address: str) -> Path:
    """Downloads the file at an address again, since not every server says whether it has changed.

    The cache keeps every content that the address ever had. `PosgapError` if it cannot be read, if it is a folder, and
    if the package that reads such addresses is missing.
    """
    import fsspec

    scheme, _, rest = address.partition("://")
    addressed_cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=addressed_cache()) as folder:
        arrived = Path(folder) / "file"
        try:
            # A cached file system would have an old list of files.
            system, place = fsspec.url_to_fs(address, skip_instance_cache=True)
            system.get_file(place, str(arrived))
        except ImportError:
            raise MissingPackage(f"to read {scheme}://, pip install {READERS[scheme]}", at=address) from None
        except FileNotFoundError:
            raise NotFound("there is no such file, or these credentials may not see it", at=address) from None
        except Exception as error:  # every package raises errors of its own
            raise Unreadable(f"cannot be read: {first_line(error)}", at=address) from None
        if not arrived.is_file():
            raise BadOption("is a folder; name a file in it", at=address)
        here = addressed_cache() / digest_path(arrived)[:16] / scheme / rest
        here.parent.mkdir(parents=True, exist_ok=True)
        os.replace(arrived, here)
    return here

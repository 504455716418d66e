"""Whether a registry hands out the images that a run's later steps start from: a pod without its image only waits."""

import re

import urllib3

from posgap.foundation.errors import PosgapError

VARIABLE = "POSGAP_IMAGES"  # set in the pipeline's step by what compiled it
_SECONDS = 5.0
_FORMS = [f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest")]
_FORMS += [f"application/vnd.docker.distribution.{kind}.v2+json" for kind in ("manifest.list", "manifest")]


def require_images(images: str) -> str:
    """Says of each image of a text with commas what its registry answers; raises `PosgapError` if one is not there.

    Where the registry asks for a log-in, which this step has not, or does not answer, that is said and no fault.
    """
    with urllib3.PoolManager(timeout=_SECONDS, retries=False) as http:
        found = {image: _ask(http, image) for image in images.split(",")}
    missing = [image for image, answer in found.items() if answer == "not there"]
    if missing:
        raise PosgapError(f"images: {', '.join(missing)}: not in the registry; build and push them with `make images`")
    return ", ".join(f"{image.rpartition('/')[2]}: {answer}" for image, answer in found.items())


def _ask(http: urllib3.PoolManager, image: str) -> str:
    registry, _, rest = image.partition("/")
    name, _, tag = rest.rpartition(":")
    address, headers = f"https://{registry}/v2/{name}/manifests/{tag}", {"Accept": ", ".join(_FORMS)}
    try:
        answer = http.request("HEAD", address, headers=headers)
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', answer.headers.get("WWW-Authenticate", "")))
        if answer.status == 401 and "realm" in challenge:  # who is nobody gets a token for what is public
            token = http.request("GET", challenge.pop("realm"), fields=challenge).json().get("token", "")
            answer = http.request("HEAD", address, headers=headers | {"Authorization": f"Bearer {token}"})
    except (urllib3.exceptions.HTTPError, ValueError, AttributeError) as error:
        return f"not known ({type(error).__name__})"
    return {200: "there", 404: "not there"}.get(answer.status, f"not known (status {answer.status})")

"""Whether a registry hands out the images that a run's later steps start from: a pod without its image only waits."""

import re

import httpx2

from posgap.foundation.errors import PosgapError

VARIABLE = "POSGAP_IMAGES"  # set in the pipeline's step by what compiled it
_SECONDS = 5.0
_OCI, _DOCKER = "application/vnd.oci.image", "application/vnd.docker.distribution"
_FORMS = f"{_OCI}.index.v1+json, {_OCI}.manifest.v1+json, {_DOCKER}.manifest.list.v2+json, {_DOCKER}.manifest.v2+json"


def require_images(images: str) -> str:
    """Says of each image of a text with commas what its registry answers; raises `PosgapError` if one is not there.

    Where the registry asks for a log-in, which this step has not, or does not answer, that is said and no fault.
    """
    found, missing = [], []
    with httpx2.Client(timeout=_SECONDS, follow_redirects=True) as http:
        for image in images.split(","):
            answer = _ask(http, image)
            found.append(f"{image.rpartition('/')[2]}: {answer}")
            if answer == "not there":
                missing.append(image)
    if missing:
        raise PosgapError(
            f"images: {', '.join(missing)}: not in the registry; build them (`make images`) and push them"
        )
    return ", ".join(found)


def _ask(http: httpx2.Client, image: str) -> str:
    registry, _, rest = image.partition("/")
    name, _, tag = rest.rpartition(":")
    address, headers = f"https://{registry}/v2/{name}/manifests/{tag}", {"Accept": _FORMS}
    try:
        answer = http.head(address, headers=headers)
        challenge = dict(re.findall(r'(\w+)="([^"]*)"', answer.headers.get("WWW-Authenticate", "")))
        if answer.status_code == 401 and "realm" in challenge:  # who is nobody gets a token for what is public
            token = http.get(challenge.pop("realm"), params=challenge).json().get("token", "")
            answer = http.head(address, headers=headers | {"Authorization": f"Bearer {token}"})
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, AttributeError) as error:
        return f"not known ({type(error).__name__})"
    return {200: "there", 404: "not there"}.get(answer.status_code, f"not known (status {answer.status_code})")

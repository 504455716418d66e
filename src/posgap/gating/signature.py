"""Signatures of verdicts: Ed25519 over the bytes of `gate.json`, with a private key that only the environment holds."""

import base64
import binascii
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from posgap.foundation.bounds import read_bytes
from posgap.foundation.errors import BadOutput, Contradiction, Malformed, PosgapError
from posgap.foundation.printing import show

VARIABLE = "POSGAP_SIGNING_KEY"
PUBLIC, PRIVATE = "ed25519:", "ed25519-private:"  # before the 32 bytes of a key in base64
SUFFIX = ".sig"


def signing_key() -> Ed25519PrivateKey | None:
    """Returns the private key of the environment, or None. Raises `PosgapError` if it is no key."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        return Ed25519PrivateKey.from_private_bytes(_bytes(text, PRIVATE))
    except ValueError:
        raise Malformed("not a private key as `posgap policy --keygen` writes it", at=VARIABLE) from None


def public_key(key: Ed25519PrivateKey) -> str:
    """The public key of a private one, as policies name it."""
    return PUBLIC + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def sign(file: Path, key: Ed25519PrivateKey) -> None:
    """Writes the signature of a file beside it."""
    signature_file(file).write_text(base64.b64encode(key.sign(read_bytes(file))).decode() + "\n", encoding="ascii")


def signature_file(file: Path) -> Path:
    """Returns the path of a file's signature."""
    return file.with_name(file.name + SUFFIX)


def require_signed(file: Path, signed_by: str, who: str) -> None:
    """Raises `PosgapError` if the file's signature is missing or not by this public key. `who` names the one that
    requires it."""
    beside = signature_file(file)
    if not beside.is_file():
        raise PosgapError(
            f"not signed, and {who} asks for a verdict signed by {signed_by}; gate again with it", at=str(file)
        )
    try:
        signature = base64.b64decode(read_bytes(beside)[:200].strip(), validate=True)
        Ed25519PublicKey.from_public_bytes(_bytes(signed_by, PUBLIC)).verify(signature, read_bytes(file))
    except (InvalidSignature, ValueError):
        raise Contradiction(
            f"not the signature of this verdict by {signed_by}, as {who} asks for", at=str(beside)
        ) from None


def _bytes(text: str, kind: str) -> bytes:
    if not text.startswith(kind):
        raise ValueError(f"does not begin with {kind}")
    try:
        return base64.b64decode(text.removeprefix(kind), validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None


def keygen(out: Path) -> None:
    """Writes a new private key to the file, which only its owner can read, and prints the line that a policy needs."""
    key = Ed25519PrivateKey.generate()
    try:
        opened = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadOutput("is there already; a key is never replaced, name another file", at=str(out)) from None
    with open(opened, "w", encoding="ascii") as file:
        file.write(PRIVATE + base64.b64encode(key.private_bytes_raw()).decode() + "\n")
    show(f"signed_by: {public_key(key)}", {"signed_by": public_key(key), "private_key": str(out)})

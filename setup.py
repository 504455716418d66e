"""What pyproject.toml cannot say of the wheel: its packages, which nobody lists, and addresses of the repository."""

import re
import tomllib

from setuptools import find_packages, setup


def absolute(text: str, repository: str) -> str:
    """A page of the repository whose links to other files there hold anywhere: pictures as files, the rest as pages.
    Without an address they stay relative to the checkout."""
    if not repository:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1{repository}/blob/main/", text)


def addresses(repository: str) -> dict[str, str]:
    """The addresses that a package's page shows; none without a repository."""
    pages = {"Documentation": "docs/index.md", "Changelog": "CHANGELOG.md"}
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Issues": f"{repository}/issues",
        **{name: f"{repository}/blob/main/{page}" for name, page in pages.items()},
    }


def main() -> None:
    """Builds what setuptools is asked for."""
    with open("pyproject.toml", "rb") as file:
        tool = tomllib.load(file)["tool"]
    folders, repository = tool["setuptools"]["package-dir"], tool["posgap"]["repository"].rstrip("/")
    with open("README.md", encoding="utf-8") as file:
        readme = file.read()
    packages = [f"{root}.{name}" for root, folder in folders.items() for name in find_packages(folder)]
    setup(
        packages=[*folders, *packages],
        long_description=absolute(readme, repository),
        long_description_content_type="text/markdown",
        project_urls=addresses(repository),
    )


if __name__ == "__main__":
    main()

"""Finds the packages of the wheel: pyproject.toml says which folders they stand in, and nobody lists them."""

import tomllib

from setuptools import find_packages, setup

with open("pyproject.toml", "rb") as file:
    folders = tomllib.load(file)["tool"]["setuptools"]["package-dir"]

setup(packages=[*folders, *(f"{root}.{name}" for root, folder in folders.items() for name in find_packages(folder))])

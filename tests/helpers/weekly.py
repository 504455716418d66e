"""The mitigation pipeline with toy stages where the real ones take long.

Everything that decides is the real one: preflight, data version, champion, gate, promotion and report.
"""

from collections.abc import Callable

import pytest
from kfp import dsl

from posgap.components.making import image
from posgap.options.cluster import ClusterConfig

toy = dsl.component(base_image=image("cpu"), install_kfp_package=False)


@toy
def validate(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Dataset],
    exclude: dsl.Input[dsl.Dataset] = None,
    settings: dict = {},  # noqa: B006  KFP reads the defaults
    cache_key: str = "",
):
    from pathlib import Path

    from weekly_stages import check

    check(examples.path, Path(out.path))


@toy
def sweep(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Artifact],
    shard: str = "",
    label: str = "",
    settings: dict = {},  # noqa: B006
    cache_key: str = "",
):
    from pathlib import Path

    from weekly_stages import measure

    measure(examples.path, model.path, Path(out.path))


@toy
def merge(sweeps: dsl.Input[list[dsl.Artifact]], out: dsl.Output[dsl.Artifact], seed: int = 0, cache_key: str = ""):
    import shutil

    shutil.copytree(sweeps[0].path, out.path)


@toy
def teacher(
    examples: dsl.Input[dsl.Dataset],
    model: dsl.Input[dsl.Model],
    sweep: dsl.Input[dsl.Artifact],
    out: dsl.Output[dsl.Artifact],
    settings: dict = {},  # noqa: B006
    cache_key: str = "",
):
    open(out.path, "w").close()


@toy
def distill(
    examples: dsl.Input[dsl.Dataset],
    responses: dsl.Input[dsl.Artifact],
    model: dsl.Input[dsl.Model],
    out: dsl.Output[dsl.Model],
    method: str,
    settings: dict = {},  # noqa: B006
    cache_key: str = "",
):
    from pathlib import Path

    from weekly_stages import train

    train(examples.path, model.path, Path(out.path))


def pipeline() -> Callable:
    """The mitigation pipeline as it is compiled, with the toys in place of these stages."""
    from posgap.pipelines import mitigation

    with pytest.MonkeyPatch.context() as patched:
        for component in (validate, sweep, merge, teacher, distill):
            patched.setattr(mitigation, component.name, component)
        return mitigation.mitigation_pipeline(ClusterConfig())

"""A pipeline's form, from a config."""

from collections.abc import Callable

from posgap.config import Config

NO_FIELDS = {"out", "force", "trainer", "gpus_here"}  # of a config, that are no parameters of a pipeline


def form(config: type[Config]) -> Callable[[Callable], Callable]:
    """Gives a pipeline function's parameters the config's defaults and descriptions, which KFP reads off the
    function. Raises `TypeError` where function and config do not name the same parameters."""

    def wrap(function: Callable) -> Callable:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        fields = {name: field for name, field in config.model_fields.items() if name not in NO_FIELDS}
        if differing := set(names) ^ set(fields):
            raise TypeError(f"pipeline {function.__name__}: parameters differ from {config.__name__}: {differing}")
        required = [name for name in names if fields[name].is_required()]
        function.__defaults__ = tuple(config.default(name) for name in names[len(required) :])
        described = "\n".join(f"    {name}: {fields[name].description}." for name in names)
        function.__doc__ = f"{function.__doc__}\n\nArgs:\n{described}\n"
        return function

    return wrap

"""Writes the config.json of a model that only posgap loads: other loaders find no model in it, so none silently drops
its RoPE factors and mitigations.

Such a file is *closed*: the model's own config is in `posgap_model`, and beside it a model type that names the remedy.
transformers, and every other program that looks a family up, reports that type as unknown. Sizes are given in words
there, for loaders that are told the family (`LlamaForCausalLM.from_pretrained`) and fill in missing ones.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posgap.foundation.files import read_object, write_json
from posgap.foundation.heavy_types import PretrainedConfig
from posgap.models import CLOSED_TYPE, CONFIG_KEY, MITIGATIONS_KEY

# One level deeper than a loader of a family looks for a config of its type.
_MODEL = "posgap_model"
_CONFIG = "config"
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def close_config(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a model's config.json to write: closed if it names RoPE factors or mitigations."""
    if config_json.get(CONFIG_KEY) is None and config_json.get(MITIGATIONS_KEY) is None:
        return dict(config_json)
    parts = [key for key, value in config_json.items() if key.endswith("_config") and isinstance(value, dict)]
    words = dict.fromkeys((*_SIZES, *parts), CLOSED_TYPE)
    own = {_CONFIG: dict(config_json)}
    return {"model_type": CLOSED_TYPE, "architectures": [CLOSED_TYPE], **words, _MODEL: own}


def open_config(config_json: Mapping[str, Any]) -> dict[str, Any]:
    """A model's own config.json, of one that is closed or, as an older posgap and all others write it, is not."""
    return dict(config_json[_MODEL][_CONFIG] if is_closed(config_json) else config_json)


def is_closed(config_json: Mapping[str, Any]) -> bool:
    """Whether a config.json is closed."""
    own = config_json.get(_MODEL)
    return config_json.get("model_type") == CLOSED_TYPE and isinstance(own, dict) and isinstance(own.get(_CONFIG), dict)


def read_config(folder: Path) -> dict[str, Any]:
    """The own config.json of the model in a folder, closed or not."""
    return open_config(read_object(folder / "config.json"))


def write_closable_config(folder: Path, config_json: Mapping[str, Any]) -> None:
    """Writes the config.json of a model that is read by `read_config`."""
    write_json(folder / "config.json", close_config(config_json))


def load_closed_config(config_json: Mapping[str, Any], name: str) -> PretrainedConfig:
    """The configuration that transformers makes of a closed config.json; `name` is the model's folder.

    Raises what transformers raises of the model's own config.json.
    """
    from transformers import AutoConfig

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(open_config(config_json)), encoding="utf-8")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    config.name_or_path = name
    return config

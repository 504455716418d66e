"""Models of transformers: loading and saving them, and scaling their rotary positions by layer or by head.

Nothing is imported here, so that vLLM's plugin finds the names below without transformers.
"""

# The file that marks one of peft's folders as an adapter, which is no model by itself.
ADAPTER = "adapter_config.json"
MERGING = "merge it into its base by peft: AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
# The fault of a folder that holds no model.
NO_CONFIG = "config.json is missing; give the folder that `save_pretrained` wrote"
# The RoPE factors in a model's config.json.
CONFIG_KEY = "posgap_rope_factors"
# Tells vLLM that each layer needs its own table, since a search changes its factor.
OWN_TABLES_KEY = "posgap_own_tables"
# The other mitigations that posgap applies when it loads a model.
MITIGATIONS_KEY = "posgap_mitigations"
# The model type of a folder with either; other loaders quote it when they reject it.
CLOSED_TYPE = "pip_install_posgap_then_posgap.load_model"
# The factor by which `ntk` stretched the context that its RoPE base can resolve; the base itself does not show it.
NTK_KEY = "posgap_ntk_factor"

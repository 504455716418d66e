"""Models of transformers: loading and saving them, and scaling their rotary positions by layer or by head.

Nothing is imported here, so that vLLM's plugin finds the names below without transformers.
"""

# What a folder of peft's has that is an adapter, and no model by itself.
ADAPTER = "adapter_config.json"
MERGING = "merge it into its base by peft: AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload()"
# What is wrong with a folder that is no model's.
NO_CONFIG = "there is no config.json; give the folder that `save_pretrained` wrote"
# Where a model's config.json has its RoPE factors.
CONFIG_KEY = "posgap_rope_factors"
# Where vLLM is told that each layer needs a table of its own, since a search changes its factor.
OWN_TABLES_KEY = "posgap_own_tables"
# Where it has the other mitigations that posgap applies when it loads a model.
MITIGATIONS_KEY = "posgap_mitigations"
# The model type of a folder with either, which other loaders quote where they say that they do not know it.
CLOSED_TYPE = "pip_install_posgap_then_posgap.load_model"
# Where it says by which factor `ntk` stretched what its base of RoPE can tell apart; the base itself does not show it.
NTK_KEY = "posgap_ntk_factor"

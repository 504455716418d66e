"""From a config to the prompts and the generator of its backend. Each backend is imported when it is chosen."""

import os

from posgap.config import BackendConfig, SweepConfig
from posgap.errors import PosgapError
from posgap.generation.generator import Generator
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder, get_task
from posgap.tasks.setup import order_of, prompt_builder


def open_builder(config: BackendConfig) -> TextPromptBuilder:
    """What makes the prompts: text alone for an endpoint, which has the tokenizer."""
    if config.backend == "openai":
        task = get_task(config.task)
        return TextPromptBuilder(task, config.max_new_tokens or task.max_new_tokens, order_of(config))
    return prompt_builder(config.task, config.model, config.max_new_tokens, order_of(config))


def open_generator(config: BackendConfig, build: TextPromptBuilder) -> Generator:
    """What answers them; `PosgapError` where the backend lacks something."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PosgapError(
            "generation starts processes of its own: run this without a launcher; `processes` says how many, and by "
            "itself it takes every GPU"
        )
    if isinstance(config, SweepConfig) and config.backend == "openai":
        from posgap.generation.openai import OpenAIGenerator

        if not config.base_url:
            raise PosgapError("backend openai: give `base_url`, like http://localhost:8000/v1")
        limits = (config.concurrency, config.timeout, config.retries)
        return OpenAIGenerator(config.base_url, config.model, *limits, chat=config.endpoint == "chat")
    assert isinstance(build, PromptBuilder)
    if config.backend == "vllm":
        from posgap.generation.vllm import VLLMGenerator

        return VLLMGenerator(config.model, config.dtype, build.context, config.seed)
    import torch

    from posgap.generation.parallel import ParallelGenerator
    from posgap.generation.transformers import TransformersGenerator
    from posgap.models.loading import load_model

    if (processes := config.processes or torch.cuda.device_count()) > 1:
        return ParallelGenerator(config.model, config.dtype, build.tokenizer, config.batch_tokens, processes)
    return TransformersGenerator(load_model(config.model, config.dtype), build.tokenizer, config.batch_tokens)

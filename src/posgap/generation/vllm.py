"""The vLLM backend of the Generator interface, with prefix caching."""

import atexit
import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from transformers import PreTrainedTokenizerBase

from posgap.foundation.errors import MissingPackage, PosgapError, first_line
from posgap.generation.batching import Group, reading_order
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Completion, Sampling
from posgap.models.loading import model_folder, require_finite_files
from posgap.tasks.prompts import Prompt

log = logging.getLogger(__name__)
GROUPS_AT_ONCE = 64  # vLLM queues more than fits; this limits the memory for prompts and the work a kill can lose


class VLLMGenerator:
    """Generates with vLLM in this process; it batches prompts and reuses their prefixes itself.

    Orders a group's prompts so that each shares the longest prefix with the previous one, which then is still in a
    small cache.

    Raises `PosgapError` if vLLM is not installed or refuses the model.
    """

    def __init__(
        self,
        model: str,
        dtype: str,
        seed: int,
        tokenizer: PreTrainedTokenizerBase,
        gpus: int = 1,
        context: int | None = None,
        **more: Any,
    ):
        """`context` is the most tokens of a prompt with its response; without it they are the model's own, or what
        memory holds. `more` are further arguments of `vllm.LLM`."""
        try:
            from vllm import LLM
            from vllm.platforms import current_platform
        except ImportError:
            raise MissingPackage(
                "backend vllm: vllm is not installed here; install posgap in an environment with vllm, serve the model "
                "elsewhere and give its address as --model, or choose --backend transformers"
            ) from None
        self.tokenizer = tokenizer
        folder = model_folder(model)
        require_finite_files(folder)  # vLLM itself refuses weights that are missing
        # Only whole blocks are found in the cache, and on a CPU vLLM's own are of 128 tokens.
        blocks = {"block_size": 32} if current_platform.is_cpu() else {}
        try:
            self.llm = LLM(
                model=str(folder),
                dtype=dtype,
                max_model_len=context or -1,
                seed=seed,
                enable_prefix_caching=True,
                tensor_parallel_size=gpus,
                trust_remote_code=False,
                **blocks,
                disable_log_stats=False,  # else it does not count what its cache had
                **more,
            )
        except (OSError, ValueError, RuntimeError) as error:
            reason = first_line(error)
            raise PosgapError(f"{model}: vLLM cannot serve this model: {reason}; --backend transformers may") from None
        # Python waits at its end for vLLM's process, perhaps before vLLM itself ends it.
        atexit.register(self.llm.llm_engine.engine_core.shutdown)
        self._salt: dict[str, str] = {}

    def scale_layers(self, factors: Sequence[float]) -> None:
        """Applies RoPE factors `[L]`, if its workers are `FactorSetter`s. The cache no longer finds prompts that were
        read with other factors.
        """
        plain = list(map(float, factors))  # vLLM sends no numbers of numpy's
        self.llm.collective_rpc("set_factors", args=(plain,))
        self._salt = {"cache_salt": str(plain)}

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        indexed = enumerate(groups)
        while window := list(islice(indexed, GROUPS_AT_ONCE)):
            yield from self._answer_window(window, sampling)
        hits, queries = self.count_cached()
        if not self._salt:  # one of a search's many candidates says nothing
            log.info("vLLM had %d of the prompts' %d tokens in its cache", hits, queries)

    def count_cached(self) -> tuple[int, int]:
        """Returns how many tokens of all prompts so far vLLM's prefix cache had, and how many they are."""
        counts = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        return counts.get("vllm:prefix_cache_hits", 0), counts.get("vllm:prefix_cache_queries", 0)

    def _answer_window(
        self, window: list[tuple[int, Group]], sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        places: list[tuple[int, int]] = []
        prompts: list[Prompt] = []
        for index, group in window:
            for number in reading_order([prompt.token_ids for prompt in group]):
                places.append((index, number))
                prompts.append(group[number])
        completions = self._completions(prompts, sampling, sampling.stop)
        # vLLM also stops at a stop string before any text of an answer; our backends do not.
        early = [row for row, completion in enumerate(completions) if completion is None]
        if early:
            whole = self._completions([prompts[row] for row in early], sampling, ())
            for row, completion in zip(early, whole):
                completions[row] = completion
        for (index, number), completion in zip(places, completions, strict=True):
            assert completion is not None
            yield index, number, completion

    def _completions(
        self, prompts: Sequence[Prompt], sampling: Sampling, stop: Sequence[str]
    ) -> list[Completion | None]:
        """The completions of prompts; None if one of the strings of `stop` ended a response that is not over."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError

        parameters = [
            SamplingParams(
                max_tokens=sampling.limit,
                temperature=sampling.temperature,
                top_p=1.0,
                top_k=0,
                seed=sampling.seed_of(prompt),
                stop=list(stop),
            )
            for prompt in prompts
        ]
        asked = [{"prompt_token_ids": list(prompt.token_ids), **self._salt} for prompt in prompts]
        completions: list[Completion | None] = []
        try:
            outputs = self.llm.generate(asked, parameters, use_tqdm=False)
        except VLLMClientError as error:  # a prompt that its memory does not hold
            raise PosgapError(f"backend vllm: {first_line(error)} Or take --backend transformers.") from None
        for prompt, output in zip(prompts, outputs, strict=True):
            answer = output.outputs[0]
            stopped = isinstance(answer.stop_reason, str)
            # vLLM has read which tokens end a response.
            ends = answer.token_ids[-1:] if answer.finish_reason == "stop" and not stopped else ()
            stream = ResponseStream(self.tokenizer, ends, sampling)
            stream.take_all(answer.token_ids)
            read = stream.completion(len(prompt.token_ids))
            completions.append(read if stream.over or not stopped else None)
        return completions

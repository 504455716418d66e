"""The vLLM backend of the Generator interface, with prefix caching."""

from collections.abc import Iterable, Iterator

from posgap.errors import PosgapError
from posgap.generation.batching import Group
from posgap.generation.generator import Completion, Sampling
from posgap.models.loading import model_folder, require_finite_files

GROUPS_AT_ONCE = 64  # vLLM queues more than fits; this limits the memory for prompts and the work a kill can lose


class VLLMGenerator:
    """Generates with vLLM in this process; it batches prompts and reuses their prefixes itself.

    `dtype` "auto" is the model's own. Raises `PosgapError` if vLLM is not installed or refuses the model.
    """

    def __init__(self, model: str, dtype: str, context: int, seed: int):
        try:
            from vllm import LLM
        except ImportError:
            raise PosgapError(
                "backend vllm: vllm is not installed here; install posgap in an environment with vllm, serve the model "
                "elsewhere and choose --backend openai, or choose --backend transformers"
            ) from None
        folder = model_folder(model)
        require_finite_files(folder)  # vLLM itself refuses weights that are missing
        try:
            self.llm = LLM(
                model=str(folder),
                dtype=dtype,
                max_model_len=context,
                seed=seed,
                enable_prefix_caching=True,
                trust_remote_code=False,
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise PosgapError(f"{model}: vLLM cannot serve this model: {str(error).splitlines()[0]}") from None

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        window: list[tuple[int, Group]] = []
        for indexed in enumerate(groups):
            window.append(indexed)
            if len(window) == GROUPS_AT_ONCE:
                yield from self._answer(window, sampling)
                window = []
        yield from self._answer(window, sampling)

    def _answer(self, window: list[tuple[int, Group]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        from vllm import SamplingParams

        parameters = SamplingParams(
            max_tokens=sampling.max_new_tokens, temperature=sampling.temperature, top_p=1.0, top_k=0, seed=sampling.seed
        )
        places = [(index, number) for index, group in window for number in range(len(group))]
        prompts = [{"prompt_token_ids": list(prompt.token_ids)} for _, group in window for prompt in group]
        outputs = self.llm.generate(prompts, parameters, use_tqdm=False)
        for (index, number), output in zip(places, outputs, strict=True):
            answer = output.outputs[0]
            cut = answer.finish_reason == "length"
            yield index, number, Completion.ended(answer.text, list(answer.token_ids), cut)

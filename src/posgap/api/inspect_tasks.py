"""The task `posgap/position` for Inspect: it asks any model that Inspect knows the questions of `posgap sweep`.

Inspect finds it by the package's entry points, and imports nothing else of posgap.
"""

from collections import defaultdict
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageSystem, ChatMessageUser, GenerateConfig
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, Value, metric, scorer
from inspect_ai.solver import TaskState

from posgap.generation.batches import completion_of
from posgap.tasks.examples import EXAMPLE
from posgap.tasks.metrics import RightAnswers
from posgap.tasks.registry import TASKS
from posgap.verbs.inspect_logs import OPTIONS, body_of, plan_samples


@task
def position(task: str = "kv", examples: str = "", n_examples: int = 100, **options: Any) -> Task:
    """Returns the prompts of a sweep as a task of Inspect, with a sample for each.

    Args:
        task: posgap's task, by its name or by a file.
        examples: file of examples; without it `n_examples` are made.
        n_examples: how many are made.
        options: options of `posgap sweep` by their names, like n_docs, positions, metric or system.
    """
    given = {"task": task, **options}
    config, sampling, asked = plan_samples(given, examples, n_examples)
    samples = [Sample(**each | {"input": list(map(_message, each["input"]))}) for each in asked]
    return Task(
        dataset=samples,
        scorer=position_score(config.task, config.metric),
        config=GenerateConfig(max_tokens=sampling.limit, temperature=sampling.temperature, seed=sampling.seed),
        metadata={OPTIONS: given},
    )


def _message(row: dict[str, str]) -> ChatMessage:
    return (ChatMessageSystem if row["role"] == "system" else ChatMessageUser)(content=row["content"])


@metric
def by_position() -> Metric:
    """The accuracy at every position, and the gap between the best and the worst, in points."""

    def measure(scores: list[SampleScore]) -> Value:
        found = defaultdict(list)
        swept = set()
        for each in scores:
            about = each.sample_metadata or {}
            found[about["position"]].append(100 * each.score.as_float())
            swept |= set() if about["is_baseline"] else {about["position"]}
        means = {name: sum(values) / len(values) for name, values in found.items()}
        of_positions = [means[name] for name in swept] or [0.0]
        return {"gap": max(of_positions) - min(of_positions), **means}

    return measure


@scorer(metrics=[by_position()])
def position_score(task: str, metric: str = "") -> Scorer:
    """Scores an answer as a sweep of the task does, by this metric or by the task's own."""
    chosen = TASKS[task]

    async def score(state: TaskState, target: Target) -> Score:
        completion = completion_of(body_of(state.output), state.input_text)
        right = RightAnswers(target, chosen.candidates(EXAMPLE.validate_python(state.metadata["example"])))
        is_answer = completion.outcome == "answered"
        value = float(chosen.score(completion.text, right, metric)) if is_answer else 0.0
        return Score(value=value, answer=completion.text, explanation=completion.reason or completion.outcome)

    return score

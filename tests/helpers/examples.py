"""Hand-made examples, and responses to them."""

from posgap.tasks.examples import Document, Example, KVExample
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.task import AS_GIVEN


def kv_example(number: int = 0, n_records: int = 6) -> KVExample:
    """Keys of two hex digits and values of one, as the tiny tokenizer reads them."""
    records = [(f"{(17 * i + 5 * number) % 256:02x}", f"{(i + number) % 16:x}") for i in range(n_records)]
    key, value = records[number % n_records]
    return KVExample(id=f"kv-{number}", question=key, answers=[value], key=key, value=value, records=records)


def qa_example(number: int = 0, n_distractors: int = 3) -> Example:
    gold = Document(title="Nobel Prize", text=f"The first prize went to Wilhelm Röntgen, number {number}.")
    others = [Document(title=f"Other {i}", text=f"Nothing to see in {i}.") for i in range(n_distractors)]
    return Example(
        id=f"qa-{number}", question="Who got it?", answers=["Wilhelm Röntgen"], gold=[gold], distractors=others
    )


def answered(lengths=(2, 3, 1, 2)) -> list:
    """Examples with made-up responses of so many tokens, as if given with the gold document first of five."""
    from posgap.distillation.batches import Pair
    from posgap.tasks.content import content_key
    from posgap.tasks.responses import Response

    return [
        Pair(
            kv_example(i),
            Response(
                id=f"kv-{i}",
                content=content_key(kv_example(i)),
                placement=[1],
                n_docs=5,
                response="",
                token_ids=[25 + i + t for t in range(length - 1)] + [2],
                correct=True,
            ),
        )
        for i, length in enumerate(lengths)
    ]


def prompt_text(task, example, placement, order=AS_GIVEN):
    """The text of a task's prompt, without any chat template."""
    return TextPromptBuilder(task, task.max_new_tokens, order).text(example, placement)

"""Prompts word for word, chat templates, and the model's context."""

import logging

import pytest
from examples import kv_example, prompt_text, qa_example
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posgap.data.synthetic import two_hop_examples
from posgap.demo import tiny_model
from posgap.foundation.errors import BadOption, PosgapError
from posgap.tasks.examples import Document
from posgap.tasks.multihop import final_answer
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder, document_writer


def test_the_key_value_prompt_word_for_word():
    example = kv_example(n_records=3)
    assert prompt_text(TASKS["kv"], example, Placement((2,), 3)) == (
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{"11": "1",\n "00": "0",\n "22": "2"}\n\n'
        'Key: "00"\nCorresponding value:'
    )


def test_the_question_answering_prompt_word_for_word():
    assert prompt_text(TASKS["qa"], qa_example(), Placement((2,), 2)) == (
        "Write a high-quality answer for the given question using only the provided search results "
        "(some of which might be irrelevant).\n\n"
        "Document [1](Title: Other 0) Nothing to see in 0.\n"
        "Document [2](Title: Nobel Prize) The first prize went to Wilhelm Röntgen, number 0.\n\n"
        "Question: Who got it?\nAnswer:"
    )


def test_documents_without_a_title_have_no_empty_frame():
    documents = [Document(title="", text="Orm is dry."), Document(title="Tal", text="Tal is old.")]
    for name in ("qa", "rag", "multihop-cot"):
        text = TASKS[name].text(documents, "Q?")
        assert "\nDocument [1] Orm is dry.\nDocument [2](Title: Tal) Tal is old.\n" in text, name
    # One that shows titles otherwise writes what it always wrote.
    assert document_writer("<{title}> {text}")(documents) == "<> Orm is dry.\n<Tal> Tal is old."


@pytest.mark.parametrize(
    ("name", "manner"),
    [
        ("multihop-cot", "reason over them step by step"),
        (
            "multihop-coc",
            "reason over them step by step, at every step cite the number of the document used, like [3]",
        ),
    ],
)
def test_the_two_hop_prompts_word_for_word(name, manner):
    (example,) = two_hop_examples(1, 3, seed=0)
    first, second = example.gold
    (other,) = example.distractors
    assert prompt_text(TASKS[name], example, Placement((3, 1), 3)) == (
        "Answer the question from the documents below; some of them are irrelevant. The answer rests on more than "
        f"one document: {manner}, and end with a sentence of this form: The answer is ...\n\n"
        f"Document [1](Title: {second.title}) {second.text}\n"
        f"Document [2](Title: {other.title}) {other.text}\n"
        f"Document [3](Title: {first.title}) {first.text}\n\n"
        f"Question: Who is the contact of {first.title}'s contact?\nReasoning:"
    )


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("It was Ben. The answer is Ben.", "Ben"),
        ("the ANSWER is Ben", "Ben"),
        ("The answer is Ada. No, wait. The answer is Ben.", "Ben"),
        ("The answer is J. R. R. Tolkien.", "J. R. R. Tolkien"),
        ("The answer is J. R. R. Tolkien. He wrote it.", "J. R. R. Tolkien"),
        ("The answer is 3.5. That is more.", "3.5"),
        ("The answer is the U.S. Army.", "the U.S. Army"),
        ("The answer is Warner Bros. Records. It was sold.", "Warner Bros. Records"),
        ("The answer is Panic! at the Disco.", "Panic! at the Disco"),
        ("The answer is vitamin C. This is known.", "vitamin C"),
        ("The answer is no. Both are French.", "no"),
        ('The answer is "Kiss and Tell".\nDone.', "Kiss and Tell"),
        ("The answer is **Chief of Protocol**.", "Chief of Protocol"),
        ("**The answer is:** Shirley Temple", "Shirley Temple"),
        ("The answer is:\n\nShirley Temple\nas shown", "Shirley Temple"),
        ("The answer isn't known", ""),
        ("Shirley Temple", ""),
        ("The answer is", ""),
        ("", ""),
    ],
)
def test_the_final_answer_of_a_chain_of_thought(response, answer):
    assert final_answer(response) == answer


@given(st.text(), st.from_regex(r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})?", fullmatch=True))
def test_a_final_answer_is_found_behind_whatever_comes_before(reasoning, answer):
    assert final_answer(f"{reasoning} The answer is {answer}.") == answer


def test_a_chain_is_judged_by_its_final_answer_alone_and_wrong_without_one():
    (example,) = two_hop_examples(1, 3, seed=0)
    task, (answer,) = TASKS["multihop-cot"], example.answers
    assert task.score(answer, example.answers) == 0
    assert task.score(f"{answer}. The answer is nobody.", example.answers) == 0
    assert task.score(f"Of course. The answer is {answer}.", example.answers) == 1
    assert task.score(f"The answer is {answer} Smith.", example.answers) == 0
    assert task.score(f"The answer is {answer} Smith.", example.answers, "f1") == pytest.approx(2 / 3)
    assert TASKS["kv"].score(f"it is {kv_example().value}", kv_example().answers) == 1


def test_braces_in_documents_are_left_alone():
    example = qa_example().model_copy(update={"question": "what is {x}?"})
    assert "what is {x}?" in prompt_text(TASKS["qa"], example, Placement((1,), 1))


def test_an_unknown_task_names_the_known_ones():
    with refuses(BadOption, "'sort'", "kv, qa, multihop-cot, multihop-coc"):
        TASKS["sort"]


def word_tokenizer(**options) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "USER": 1, "ASSISTANT": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", **options)


def test_the_chat_template_is_applied_where_there_is_one():
    tokenizer = word_tokenizer()
    plain = PromptBuilder(TASKS["qa"], tokenizer, 512, 1)
    tokens = plain(qa_example(), Placement((1,), 2))
    tokenizer.chat_template = (
        "{% for m in messages %}USER {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} ASSISTANT{% endif %}"
    )
    chat = PromptBuilder(TASKS["qa"], tokenizer, 512, 1)
    assert chat(qa_example(), Placement((1,), 2)) == [1, *tokens, 2]


def test_a_response_is_written_as_the_model_would_after_the_prompt(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 4)
    example = kv_example(3)
    gold = build.gold_response(example, Placement((2,), 4))
    assert tokenizer.convert_ids_to_tokens(gold) == [f" {example.value}", "<eos>"]
    # Prompt and response together are what the tokenizer makes of both texts together.
    prompt = build(example, Placement((2,), 4))
    whole = f'{prompt_text(TASKS["kv"], example, Placement((2,), 4))} "{example.value}"'
    assert prompt + build.gold_response(example, Placement((2,), 4)) == [
        *tokenizer(whole)["input_ids"],
        tokenizer.eos_token_id,
    ]


def test_a_response_begins_with_a_space_only_behind_a_plain_prompt():
    (example,) = two_hop_examples(1, 3, seed=0)
    gold = f"The answer is {example.answers[0]}."
    core = Tokenizer(models.WordLevel({letter: i for i, letter in enumerate(sorted(set(f" {gold}|")))}, unk_token="|"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="|")
    build = PromptBuilder(TASKS["multihop-cot"], tokenizer, 512, 4)
    placement = Placement((1, 2), 3)
    assert "".join(tokenizer.convert_ids_to_tokens(build.gold_response(example, placement))) == f" {gold}|"
    tokenizer.chat_template = "{{ messages }}"
    build = PromptBuilder(TASKS["multihop-cot"], tokenizer, 512, 4)
    assert "".join(tokenizer.convert_ids_to_tokens(build.gold_response(example, placement))) == f"{gold}|"


def test_a_prompt_beyond_the_context_is_refused_not_cut(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, context=30, max_new_tokens=4)
    assert len(build(kv_example(), Placement((1,), 4))) == 22
    with refuses(PosgapError, "kv-0", "30 tokens", "4 new ", "context of 30"):
        build(kv_example(), Placement((1,), 6))


def test_the_digest_tells_wordings_and_vocabularies_apart(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 4)
    assert build.digest() == PromptBuilder(TASKS["kv"], tokenizer, 99, 9).digest()
    assert build.digest() != PromptBuilder(TASKS["qa"], tokenizer, 512, 4).digest()
    assert build.digest() != PromptBuilder(TASKS["kv"], word_tokenizer(), 512, 4).digest()


@pytest.mark.parametrize("name", ["kv", "qa", "multihop-cot", "multihop-coc"])
def test_the_question_may_stand_before_the_documents_or_on_both_sides(name):
    task = TASKS[name]
    instruction, documents, question_and_cue = task.template.split("\n\n")
    question, cue = question_and_cue.split("\n")
    assert task.ordered_template(PromptOrder()) == task.template
    assert task.ordered_template(PromptOrder("both")) == "\n\n".join(
        [instruction, question, documents, question_and_cue]
    )
    assert task.ordered_template(PromptOrder("before")) == "\n\n".join([instruction, question, documents, cue])


@pytest.mark.parametrize("textual", [False, True])
def test_the_order_is_part_of_the_prompts_and_of_their_digest(tokenizer, textual):
    def build(order):
        task = TASKS["kv"]
        return TextPromptBuilder(task, 4, order) if textual else PromptBuilder(task, tokenizer, 512, 4, order)

    example, placement = kv_example(2), Placement((2,), 6)
    orders = [PromptOrder(), PromptOrder("before"), PromptOrder("both"), PromptOrder(shuffle=1), PromptOrder(shuffle=2)]
    assert len({build(order).prompt(example, placement).text for order in orders}) == len(orders)
    assert len({build(order).digest() for order in orders}) == len(orders)


@pytest.mark.parametrize("chat", ["", "{{ '<s>' + messages[0]['content'] + '</s>' }}"])
def test_documents_are_found_among_a_prompt_s_tokens(tokenizer, chat, monkeypatch):
    monkeypatch.setattr(tokenizer, "chat_template", chat or None)
    build, placement = PromptBuilder(TASKS["kv"], tokenizer, 10**6, 8), Placement((3,), 4)
    example = kv_example()
    prompt, documents = build.prompt(example, placement), build.documents(example, placement)
    spans = build.spans(example, documents, prompt)
    shown = [tokenizer.decode(prompt.token_ids[first:end]) for first, end in spans]
    assert len(shown) == 4
    for text, document in zip(shown, documents):
        assert document.title in text and document.text in text
        assert not any(other.title in text for other in documents if other != document)
    ends = [0, *(end for _, end in spans)]
    assert all(end <= first < stop for end, (first, stop) in zip(ends, spans))


def test_a_prompt_beyond_the_tokenizer_s_length_is_judged_by_the_model_s_alone(monkeypatch, caplog):
    """A tokenizer warns of it once, in words that name neither the example nor what to do."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    read = tiny_model.tokenizer()
    build = PromptBuilder(TASKS["kv"], read, 1024, 4)
    assert len(build(kv_example(0, 150), Placement((1,), 150))) > read.model_max_length
    assert not caplog.records
    read("a" * 600)
    assert "longer than the specified maximum" in caplog.text

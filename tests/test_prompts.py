"""Prompts word for word, chat templates, and the model's context."""

import pytest
from conftest import kv_example, qa_example
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from posgap.errors import PosgapError
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, get_task


def test_the_key_value_prompt_word_for_word():
    example = kv_example(n_records=3)
    assert get_task("kv").prompt(example, Placement((2,), 3)) == (
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{"11": "1",\n "00": "0",\n "22": "2"}\n\n'
        'Key: "00"\nCorresponding value:'
    )


def test_the_question_answering_prompt_word_for_word():
    assert get_task("qa").prompt(qa_example(), Placement((2,), 2)) == (
        "Write a high-quality answer for the given question using only the provided search results "
        "(some of which might be irrelevant).\n\n"
        "Document [1](Title: Other 0) Nothing to see in 0.\n"
        "Document [2](Title: Nobel Prize) The first prize went to Wilhelm Röntgen, number 0.\n\n"
        "Question: Who got it?\nAnswer:"
    )


def test_braces_in_documents_are_left_alone():
    example = qa_example().model_copy(update={"question": "what is {x}?"})
    assert "what is {x}?" in get_task("qa").prompt(example, Placement((1,), 1))


def test_an_unknown_task_names_the_known_ones():
    with pytest.raises(PosgapError, match="unknown task 'sort': choose one of kv, qa"):
        get_task("sort")


def word_tokenizer(**options) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.WordLevel({"<unk>": 0, "USER": 1, "ASSISTANT": 2}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", **options)


def test_the_chat_template_is_applied_where_there_is_one():
    tokenizer = word_tokenizer()
    plain = PromptBuilder(get_task("qa"), tokenizer, 512, 1)
    tokens = plain(qa_example(), Placement((1,), 2))
    tokenizer.chat_template = (
        "{% for m in messages %}USER {{ m['content'] }}{% endfor %}{% if add_generation_prompt %} ASSISTANT{% endif %}"
    )
    chat = PromptBuilder(get_task("qa"), tokenizer, 512, 1)
    assert chat(qa_example(), Placement((1,), 2)) == [1, *tokens, 2]


def test_a_prompt_beyond_the_context_is_refused_not_cut(tokenizer):
    build = PromptBuilder(get_task("kv"), tokenizer, context=30, max_new_tokens=4)
    assert len(build(kv_example(), Placement((1,), 4))) == 22
    with pytest.raises(PosgapError, match="example kv-0 .* prompt of 30 tokens and 4 new ones exceed .* context of 30"):
        build(kv_example(), Placement((1,), 6))


def test_the_digest_tells_wordings_and_vocabularies_apart(tokenizer):
    build = PromptBuilder(get_task("kv"), tokenizer, 512, 4)
    assert build.digest() == PromptBuilder(get_task("kv"), tokenizer, 99, 9).digest()
    assert build.digest() != PromptBuilder(get_task("qa"), tokenizer, 512, 4).digest()
    assert build.digest() != PromptBuilder(get_task("kv"), word_tokenizer(), 512, 4).digest()

"""Prompts filled up to a length: by whole documents, with the gold one at its depth, and by nothing that answers."""

import random
from dataclasses import replace

import pytest
from filled import tiny, tiny_length
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.measurement.filling import at_lengths
from posgap.options.sweep import SweepConfig
from posgap.tasks.examples import Document, Example
from posgap.tasks.metrics import sub_exact_match
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder

CHAT = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<eos>\n{% endfor %}<|assistant|>\n"
WORDS = ("the", "of", "gap", "naïve", "Köln", "東京", "😀", "don't", "3,141", "x²", "retrieval-augmented", "run\tup")


def passage(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def passages(n: int = 4, distractors: int = 14) -> list[Example]:
    rng = random.Random(0)
    return [
        Example(
            id=f"e{i}",
            question=passage(rng, 5),
            answers=[f"answer{i}"],
            gold=[Document(title=f"gold {i}", text=f"{passage(rng, 6)} answer{i} {passage(rng, 6)}")],
            distractors=[
                Document(title=passage(rng, 2), text=passage(rng, rng.randint(3, 40))) for _ in range(distractors)
            ],
        )
        for i in range(n)
    ]


def trained_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the passages: of bytes as GPT's, or of pieces as sentencepiece's; some with a template."""
    texts = [document.text for example in passages() for document in example.distractors]
    special = ["<pad>", "<eos>", "<unk>"]
    if kind == "pieces":
        core = Tokenizer(models.Unigram())
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.train_from_iterator(
            texts, trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>")
        )
    else:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        letters = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters)
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.chat_template = CHAT if kind == "chat" else None
    return tokenizer


@pytest.fixture(scope="module", params=["bytes", "pieces", "chat"])
def build(request) -> PromptBuilder:
    return PromptBuilder(TASKS["qa"], trained_tokenizer(request.param), 5000, 7)


def filled(build: PromptBuilder, lengths, examples, depths="5", seed=0) -> list[PromptBuilder]:
    asked = SweepConfig(model="m", examples="e", out="o", lengths=lengths, depths=depths, seed=seed)
    return at_lengths(asked.lengths, asked.depths, asked.seed, build, examples)


EXAMPLES = passages()


def tokens_at_depths(build: PromptBuilder, example, fillers) -> list[int]:
    """The tokens of the prompt with this filler, the gold document after each number of its documents."""
    prompts = [[*fillers[:at], *example.gold, *fillers[at:]] for at in range(len(fillers) + 1)]
    return [len(build.token_ids(build.word_prompt(example, prompt))) for prompt in prompts]


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(1000, 1700),
    depths=st.sampled_from(["5", "2", "50%", "0,33.3,90"]),
    order=st.builds(PromptOrder, st.sampled_from(["after", "before", "both"]), st.integers(0, 2)),
)
def test_as_many_whole_documents_as_fit_at_every_depth(build, length, depths, order):
    build.order = order
    (at_length,) = filled(build, [length], EXAMPLES, depths)
    most, example = length - build.max_new_tokens, EXAMPLES[1]
    prompts = [at_length.documents(example, placement) for placement in at_length.fill.placements]
    assert max(len(at_length(example, placement)) for placement in at_length.fill.placements) <= most
    (fillers,) = {tuple(document for document in prompt if document not in example.gold) for prompt in prompts}
    assert len(fillers) == len(prompts[0]) - 1 and all(any(d in e.distractors for e in EXAMPLES) for d in fillers)
    # A longer length takes further documents behind these; the next one does not fit at some depth.
    (longer,) = filled(build, [length + 300], EXAMPLES, depths)
    more = [d for d in longer.documents(example, longer.fill.placements[0]) if d not in example.gold]
    assert tuple(more[: len(fillers)]) == fillers and len(more) > len(fillers)
    assert max(tokens_at_depths(build, example, more[: len(fillers) + 1])) > most


def test_thoughts_and_answer_have_room_within_the_length(build):
    build.order = PromptOrder()
    thinking = PromptBuilder(TASKS["qa"], build.tokenizer, 5000, 7).with_attributes(max_thinking_tokens=400)
    (at_length,), (shorter,) = filled(thinking, [1700], EXAMPLES), filled(build, [1300], EXAMPLES)
    for placement in shorter.fill.placements:
        assert at_length(EXAMPLES[1], placement) == shorter(EXAMPLES[1], placement)


def test_the_gold_document_stands_after_its_share_of_the_filler_whose_order_stays(build):
    build.order = PromptOrder()
    (at_length,) = filled(build, [1500], EXAMPLES, "0,30,100")
    for example in EXAMPLES:
        before = []
        fillers = []
        for placement in at_length.fill.placements:
            documents = at_length.documents(example, placement)
            at = documents.index(example.gold[0])
            others = documents[:at] + documents[at + 1 :]
            sizes = [
                len(build.tokenizer(build.task.render([d]), add_special_tokens=False)["input_ids"]) for d in others
            ]
            before.append(sum(sizes[:at]) / sum(sizes))
            fillers.append(others)
            nearest = max(sizes) / sum(sizes) / 2 + 0.02
        assert before[0] == 0 and before[2] == 1 and abs(before[1] - 0.3) <= nearest < 0.2
        # All placements have the very same documents, the example's own first.
        assert fillers[0] == fillers[1] == fillers[2]
        whole = min(len(fillers[0]), len(example.distractors))
        assert whole > 5 and fillers[0][:whole] == example.distractors[:whole]


def test_filler_of_other_examples_never_answers_nor_stands_there_twice(build):
    build.order = PromptOrder()
    poison = Document(title="elsewhere", text="It was answer0, they say.")
    rival = Document(title="Gold 0", text="Another of that title.")
    own = [example.model_copy(update={"distractors": example.distractors[:4]}) for example in EXAMPLES]
    own[1].distractors.extend([poison, rival, *own[0].distractors])
    (at_length,) = filled(build, [1300], own)
    documents = at_length.documents(own[0], at_length.fill.placements[0])
    others = [document for document in documents if document not in own[0].gold]
    assert len(others) > 4 and len(set(others)) == len(others)
    assert not any(sub_exact_match(f"{d.title} {d.text}", own[0].answers) or d.title == "Gold 0" for d in others)
    (again,) = filled(build, [1300], own)
    assert again.documents(own[0], again.fill.placements[0]) == documents and again.digest() == at_length.digest()
    (drawn,) = filled(build, [1300], own, seed=1)
    assert drawn.documents(own[0], drawn.fill.placements[0]) != documents and drawn.digest() != at_length.digest()


@pytest.mark.parametrize("more", [0, 3])
def test_a_length_is_the_prompt_of_as_many_documents_as_fit(tokenizer, more):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21) + more], tiny())
    for example in tiny():
        for placement, position in zip(at_length.fill.placements, (1, 6, 11, 16, 21)):
            assert at_length(example, placement) == build(example, Placement((position,), 21))


@pytest.fixture
def kv(tokenizer) -> PromptBuilder:
    """Each record is four tokens, and what stands around them six."""
    return PromptBuilder(TASKS["kv"], tokenizer, 512, 2)


def place_of_gold(at_length: PromptBuilder, example) -> list[int]:
    """How many documents stand before the gold one, at each depth."""
    found = [at_length.documents(example, placement) for placement in at_length.fill.placements]
    return [documents.index(example.gold[0]) for documents in found]


@pytest.mark.parametrize(
    ("fillers", "depths", "before"),
    [
        (20, "0,10,48,100", [0, 2, 10, 20]),
        # As near to one border as to the next: the first.
        (20, "2.5,97.5", [0, 19]),
        (21, "50%", [10]),
        (4, "5", [0, 1, 2, 3, 4]),
        (3, "0,40,60,100", [0, 1, 2, 3]),
    ],
)
def test_the_gold_document_stands_at_the_border_that_is_nearest_to_its_depth(kv, fillers, depths, before):
    assert place_of_gold(*first_of(kv, fillers, depths)) == before


def first_of(kv: PromptBuilder, fillers: int, depths: str):
    (at_length,) = filled(kv, [tiny_length(fillers + 1)], tiny(), depths)
    return at_length, tiny()[0]


@pytest.mark.parametrize("length", [*range(500, 600, 17), 700, 900])
def test_filler_is_the_most_documents_that_fit_as_if_each_number_had_been_tried(length):
    build, places = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7), range(3)
    example, whole = EXAMPLES[1], EXAMPLES[1].distractors
    (at_length,) = filled(build, [length], EXAMPLES, "0,50,100")
    prompts = [at_length.documents(example, placement) for placement in at_length.fill.placements]
    sizes = [len(build.tokenizer(build.task.render([d]), add_special_tokens=False)["input_ids"]) for d in whole]

    def tried(number: int) -> list[list[Document]]:
        ends = [sum(sizes[:at]) for at in range(number + 1)]
        at_depths = [min(range(number + 1), key=lambda at: abs(ends[at] - ends[-1] * place / 2)) for place in places]
        return [[*whole[:at], *example.gold, *whole[at:number]] for at in at_depths]

    def fits(number: int) -> bool:
        return all(len(build.token_ids(build.word_prompt(example, each))) <= length - 7 for each in tried(number))

    assert prompts == tried(max(filter(fits, range(len(whole) + 1))))


def test_what_a_task_shows_of_documents_counts():
    titles = replace(TASKS["qa"], render=lambda documents: "\n".join(document.title for document in documents))
    build = PromptBuilder(titles, trained_tokenizer("bytes"), 5000, 7)
    (at_length,) = filled(build, [500], EXAMPLES, "2")
    assert 450 < len(at_length(EXAMPLES[1], at_length.fill.placements[0])) <= 493


def test_a_document_that_several_examples_have_is_drawn_once():
    build = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7)
    shared = Document(title="shared", text=passage(random.Random(1), 9))
    one, *others = (example.model_copy(update={"distractors": [shared]}) for example in EXAMPLES)
    one = one.model_copy(update={"distractors": EXAMPLES[0].distractors[:2]})
    every = len(build.token_ids(build.word_prompt(one, [*one.gold, *one.distractors, shared]))) + 7
    (at_length,) = filled(build, [every], [one, *others], "0,100")
    assert at_length.documents(one, at_length.fill.placements[1]) == [*one.distractors, shared, *one.gold]
    (at_length,) = filled(build, [every + 1], [one, *others], "0,100")
    with pytest.raises(PosgapError, match=f"length {every + 1}: .* {every} tokens "):
        at_length.documents(one, at_length.fill.placements[1])


def test_the_limit_holds_at_the_depth_whose_prompt_is_longest(monkeypatch):
    """As where a tokenizer joins what meets at a border: each document after the gold one is 30 tokens more here."""
    build, token_ids = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7), PromptBuilder.token_ids

    def longer(self, text: str) -> list[int]:
        return token_ids(self, text) + [0] * 30 * text.partition("gold 1")[2].count("Title:")

    monkeypatch.setattr(PromptBuilder, "token_ids", longer)
    (at_length,) = filled(build, [900], EXAMPLES, "0,50,100")
    (without,) = filled(build, [900], EXAMPLES, "100%")
    prompts = [at_length(EXAMPLES[1], at) for at in at_length.fill.placements]
    assert len({len(prompt) for prompt in prompts}) == 3 and max(map(len, prompts)) <= 893
    fewer = len(at_length.documents(EXAMPLES[1], at_length.fill.placements[0]))
    assert fewer < len(without.documents(EXAMPLES[1], without.fill.placements[0]))


def test_few_prompts_are_worded_before_one_is_filled(kv, monkeypatch):
    """However many documents it takes: halving finds how many."""
    worded, count = PromptBuilder.word_prompt, []

    def counted(self, *asked):
        count.append(asked)
        return worded(self, *asked)

    monkeypatch.setattr(PromptBuilder, "word_prompt", counted)
    (at_length,) = filled(kv, [tiny_length(101)], tiny(60), "5")
    for placement in at_length.fill.placements:
        at_length.documents(tiny(60)[0], placement)
    assert len(count) <= 8 + 5
    # Where an example's prompts come together, nothing is found twice.
    at_length.documents(tiny(60)[1], at_length.fill.placements[0])
    between = len(count)
    at_length.documents(tiny(60)[1], at_length.fill.placements[1])
    assert len(count) == between


def test_what_a_sweep_s_file_says_of_its_filler(kv):
    (at_length,) = filled(kv, ["25%"], tiny(), "0,33.333", seed=5)
    said = at_length.fill.make_record(at_length, tiny()[0])
    assert (said.length, said.tokens, said.depths, said.seed, said.documents) == ("25%", 128, [0, 33.333], 5, 30)
    assert said.depth_names == ["0 %", "33.3 %"]
    assert said.pool == digest_of([document.model_dump() for each in tiny() for document in each.distractors])
    assert at_length.fill.as_json == said.model_dump(include={"tokens", "depths", "seed", "pool", "whole"})
    assert at_length.fill.placements == [Placement((1,), 2), Placement((2,), 2)]


@pytest.mark.parametrize(("gold", "other", "is_taken"), [("", "", True), ("Rome", "ROME", False), ("Rome", "", True)])
def test_filler_with_the_gold_document_s_title_is_left_out_unless_none_has_one(gold, other, is_taken):
    build = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7)
    one, another = (example.model_copy(update={"distractors": example.distractors[:2]}) for example in EXAMPLES[:2])
    one = one.model_copy(update={"gold": [Document(title=gold, text="answer0")]})
    alike = Document(title=other, text=passage(random.Random(1), 9))
    another = another.model_copy(update={"distractors": [alike, *another.distractors]})
    every = len(
        build.token_ids(build.word_prompt(one, [*one.gold, *one.distractors, *another.distractors[1 - is_taken :]]))
    )
    (at_length,) = filled(build, [every + 7], [one, another], "0,100")
    documents = at_length.documents(one, at_length.fill.placements[1])
    assert (alike in documents) is is_taken and len(documents) == 5 + is_taken


@pytest.mark.parametrize(
    ("lengths", "complaint"),
    [
        (["600"], "length 600: .* 512 tokens"),
        (["513"], "length 513: .* 512 tokens"),
        (["256", "100", "50%"], "lengths 256 and 50%: .* 256 tokens"),
        (["11"], "length 11: example kv-0 .* 12 tokens .*max_new_tokens"),
        (["24"], "length 24: .* kv-0 .* 3 documents, .* 5 depths; .*--depths"),
        (["400"], "length 400: example kv-0 .* 136 tokens .* distractors"),
    ],
    ids=str,
)
def test_what_cannot_be_filled_is_said_with_what_to_do(kv, lengths, complaint):
    with pytest.raises(PosgapError, match=f"^{complaint}"):
        for at_length in filled(kv, lengths, tiny(10)):
            at_length.documents(tiny(10)[0], at_length.fill.placements[0])


def test_lengths_come_in_order_each_once_and_the_context_is_not_too_long(kv):
    at_lengths = filled(kv, ["512", "100", "99", "512"], tiny())
    assert [each.fill.tokens for each in at_lengths] == [99, 100, 512]

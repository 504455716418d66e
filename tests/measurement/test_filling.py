"""Prompts filled up to a length: to the token, with the gold document at its depth, and by nothing that answers."""

import random

import hypothesis
import pytest
from filled import tiny, tiny_length
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.measurement.config import SweepConfig
from posgap.measurement.filling import at_lengths
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


@settings(max_examples=8, deadline=None)
# Of the last document's end one token less is two less in the prompt here, so that the one before it is cut.
@hypothesis.example(length=1344, depths="5", order=PromptOrder("after", 2))
@given(
    length=st.integers(1000, 1700),
    depths=st.sampled_from(["5", "2", "50%", "0,33.3,90"]),
    order=st.builds(PromptOrder, st.sampled_from(["after", "before", "both"]), st.integers(0, 2)),
)
def test_prompts_have_exactly_the_tokens_asked_for(build, length, depths, order):
    build.order = order
    (at_length,) = filled(build, [length], EXAMPLES, depths)
    for placement in at_length.fill.placements:
        assert len(at_length(EXAMPLES[1], placement)) == length - build.max_new_tokens


def test_thoughts_and_answer_have_room_within_the_length(build, model_folder):
    thinking = PromptBuilder(TASKS["qa"], build.tokenizer, 5000, 7, max_thinking_tokens=40)
    asked = SweepConfig(model=str(model_folder), examples="e", out="o", lengths=[1300], depths="2")
    (at_length,) = at_lengths(asked.lengths, asked.depths, asked.seed, thinking, EXAMPLES)
    for placement in at_length.fill.placements:
        assert len(at_length(EXAMPLES[1], placement)) == 1300 - 7 - 40


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
            sizes = [len(build.tokenizer(f"{d.title} {d.text}", add_special_tokens=False)["input_ids"]) for d in others]
            before.append(sum(sizes[:at]) / sum(sizes))
            fillers.append(others)
            nearest = max(sizes) / sum(sizes) / 2 + 0.02
        assert before[0] == 0 and before[2] == 1 and abs(before[1] - 0.3) <= nearest < 0.15
        # But for the last, which is cut, all placements have the same documents, the example's own first.
        assert fillers[0][:-2] == fillers[1][:-2] == fillers[2][:-2]
        whole = min(len(fillers[0]) - 2, len(example.distractors))
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


def test_a_length_that_whole_documents_make_is_the_prompt_of_so_many_documents(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21)], tiny())
    for example in tiny():
        for placement, position in zip(at_length.fill.placements, (1, 6, 11, 16, 21)):
            assert at_length(example, placement) == build(example, Placement((position,), 21))


def test_where_no_cut_fits_as_many_whole_documents_are_taken_as_do(tokenizer, caplog):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21) + 3], tiny())
    assert at_length(tiny()[0], at_length.fill.placements[2]) == build(tiny()[0], Placement((11,), 21))
    assert "fall short of it, that of kv-0 by 3 tokens" in caplog.text


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
        # As near to one border as to the next: the outer one.
        (20, "2.5,97.5", [0, 20]),
        (20, "7.5,92.5", [1, 19]),
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


@pytest.mark.parametrize("length", [500, 517, 530, 548, 561, 590])
def test_filler_is_the_fewest_documents_of_which_the_end_of_the_last_is_cut(length):
    build = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7)
    example, whole = EXAMPLES[1], EXAMPLES[1].distractors

    def tokens(fillers) -> int:
        return len(build.token_ids(build.word_prompt(example, [*fillers, *example.gold])))

    fewest = next(number for number in range(len(whole) + 1) if tokens(whole[:number]) >= length - 7)
    (at_length,) = filled(build, [length], EXAMPLES, "0,100")
    *fillers, gold = at_length.documents(example, at_length.fill.placements[1])
    assert gold == example.gold[0] and len(fillers) == fewest
    assert fillers[: fewest - 2] == whole[: fewest - 2] and tokens(fillers) == length - 7
    for cut, there in zip(fillers[fewest - 2 :], whole[fewest - 2 : fewest]):
        assert there.text.startswith(cut.text) and cut.title == there.title


def test_where_whole_documents_make_the_length_none_is_cut():
    build = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7)
    example, whole = EXAMPLES[1], EXAMPLES[1].distractors
    for number in range(1, len(whole)):
        documents = [*whole[:number], *example.gold]
        (at_length,) = filled(
            build, [len(build.token_ids(build.word_prompt(example, documents))) + 7], EXAMPLES, "0,100"
        )
        assert at_length.documents(example, at_length.fill.placements[1]) == documents, number


def test_a_document_that_several_examples_have_is_drawn_once():
    build = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7)
    shared = Document(title="shared", text=passage(random.Random(1), 9))
    one, *others = (example.model_copy(update={"distractors": [shared]}) for example in EXAMPLES)
    one = one.model_copy(update={"distractors": EXAMPLES[0].distractors[:2]})
    every = len(build.token_ids(build.word_prompt(one, [*one.gold, *one.distractors, shared]))) + 7
    (at_length,) = filled(build, [every], [one, *others], "0,100")
    assert at_length.documents(one, at_length.fill.placements[1]) == [*one.distractors, shared, *one.gold]
    (at_length,) = filled(build, [every + 1], [one, *others], "0,100")
    with pytest.raises(PosgapError, match=f"is filled to {every} tokens"):
        at_length.documents(one, at_length.fill.placements[1])


def test_the_filler_is_cut_for_each_depth_by_itself(monkeypatch):
    """As where a tokenizer joins what meets at a border: here each document after the gold one takes one token more."""
    build, token_ids = PromptBuilder(TASKS["qa"], trained_tokenizer("bytes"), 5000, 7), PromptBuilder.token_ids

    def after(text: str) -> int:
        return text.partition("gold 1")[2].count("Title:")

    monkeypatch.setattr(PromptBuilder, "token_ids", lambda self, text: token_ids(self, text) + [0] * after(text))
    (at_length,) = filled(build, [700], EXAMPLES, "0,50,100")
    places = at_length.fill.placements
    assert [len(at_length(EXAMPLES[1], at)) for at in places] == [693] * 3
    assert len({after(at_length.text(EXAMPLES[1], at)) for at in places}) == 3


def test_few_prompts_are_worded_before_one_is_filled(kv, monkeypatch):
    """However many documents it takes: from their sizes it is known about how many."""
    worded, count = PromptBuilder.word_prompt, []

    def counted(self, *asked):
        count.append(asked)
        return worded(self, *asked)

    monkeypatch.setattr(PromptBuilder, "word_prompt", counted)
    (at_length,) = filled(kv, [tiny_length(101)], tiny(60), "5")
    for placement in at_length.fill.placements:
        at_length.documents(tiny(60)[0], placement)
    assert len(count) <= 6 + 5 * 1
    # Where an example's prompts come together, nothing is found twice.
    at_length.documents(tiny(60)[1], at_length.fill.placements[0])
    between = len(count)
    at_length.documents(tiny(60)[1], at_length.fill.placements[1])
    assert len(count) == between + 1


def test_what_a_sweep_s_file_says_of_its_filler(kv):
    (at_length,) = filled(kv, ["25%"], tiny(), "0,33.333", seed=5)
    said = at_length.fill.filled(at_length, tiny()[0])
    assert (said.length, said.tokens, said.depths, said.seed, said.documents) == ("25%", 128, [0, 33.333], 5, 30)
    assert said.depth_names == ["0 %", "33.3 %"]
    assert said.pool == digest_of([[document.model_dump() for document in each.distractors] for each in tiny()])
    assert at_length.fill.as_json == said.model_dump(include={"tokens", "depths", "seed", "pool"})
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
        (["600"], "length 600: the model reads no more than 512 tokens"),
        (["513"], "length 513: the model reads no more than 512 tokens"),
        (["256", "100", "50%"], "lengths 256 and 50%: are both 256 tokens; leave one out"),
        (["11"], "length 11: example kv-0 takes 12 tokens without any filler, its longest answer included; ask for a "
                 "longer one, or lower max_new_tokens"),
        (["24"], "length 24: the filler of example kv-0 is 3 documents, too few for 5 depths; ask for a longer one, or "
                 "for fewer --depths"),
        (["400"], "length 400: example kv-0 is filled to 136 tokens with its own distractors and all that may be taken "
                  "from the other examples; ask for a shorter one, or give more examples, or examples with more "
                  "distractors"),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_filled_is_said_with_what_to_do(kv, lengths, complaint):
    with pytest.raises(PosgapError) as refusal:
        for at_length in filled(kv, lengths, tiny(10)):
            at_length.documents(tiny(10)[0], at_length.fill.placements[0])
    assert str(refusal.value) == complaint


def test_lengths_come_in_order_each_once_and_the_context_is_not_too_long(kv):
    at_lengths = filled(kv, ["512", "100", "99", "512"], tiny())
    assert [each.fill.tokens for each in at_lengths] == [99, 100, 512]


def test_prompts_that_fall_short_are_told_of_once(tokenizer, caplog):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 2)
    (at_length,) = filled(build, [tiny_length(21) + 1], tiny())
    for example in tiny():
        at_length(example, at_length.fill.placements[0])
    (said,) = caplog.messages
    assert said == (
        f"length {tiny_length(21) + 1}: no cut of a document fits exactly, so prompts fall short of it, that of kv-0 "
        "by 1 tokens"
    )

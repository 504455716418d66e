"""Trained weights in 16 bits: what rounding leaves of small updates."""

import pytest
import torch

from posgap.demo import tiny_model
from posgap.distillation.footprint import Storages
from posgap.foundation.errors import BadModel
from posgap.models.rounding import UpdateRetention, round_stochastically, round_weights

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("value", [0.016, 1.0, -3.3, 1e-6, -2e-8, 300.4, 0.0])
def test_a_value_is_its_own_expectation(dtype, value):
    below_and_above = round_stochastically(torch.full((40_000,), value), dtype, 0).float()
    numbers = below_and_above.unique()
    assert len(numbers) == (1 if value in (0.0, 1.0) else 2) and numbers.min() <= value <= numbers.max()
    # Neighbours: nothing of this precision lies between them.
    if len(numbers) == 2:
        assert numbers.mean().to(dtype).float() in numbers
    error = abs(below_and_above.double().mean() - torch.tensor(value).double())
    assert error <= 4 * float(numbers.max() - numbers.min()) / 2 / 40_000**0.5


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_numbers_that_the_precision_has_stay_and_what_is_beyond_it_is_infinite(dtype):
    # All of them, but for NaN.
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    every = every[~every.isnan()].float()
    assert torch.equal(round_stochastically(every, dtype, 0).float(), every)
    assert round_stochastically(torch.tensor([3e38 if dtype == BF16 else 7e4]), dtype, 0).isfinite().item() == (
        dtype == BF16
    )


def test_draws_are_by_seed_and_name():
    values = torch.rand(1000)
    first = round_stochastically(values, BF16, 0, "a")
    assert torch.equal(first, round_stochastically(values, BF16, 0, "a"))
    assert not torch.equal(first, round_stochastically(values, BF16, 1, "a"))
    assert not torch.equal(first, round_stochastically(values, BF16, 0, "b"))
    assert torch.equal(round_stochastically(values, torch.float32, 0), values)


def test_small_steps_are_lost_to_the_nearest_number_and_kept_at_random():
    """The paper's: twenty steps of at most 3e-6, to and fro, on weights of 0.02."""
    draw = torch.Generator().manual_seed(0)
    base = (0.02 * torch.randn(500, 400, generator=draw)).to(BF16)
    trained = base.float() + 1e-5 * torch.randn(base.shape, generator=draw)
    nearest, at_random, whole = UpdateRetention(), UpdateRetention(), UpdateRetention()
    nearest.add_tensor(base, trained, trained.to(BF16))
    at_random.add_tensor(base, trained, round_stochastically(trained, BF16, 0))
    whole.add_tensor(base, trained, trained)
    assert nearest.update < 0.3 and nearest.numbers < 0.2
    assert at_random.update == pytest.approx(1, abs=0.02) and at_random.numbers > nearest.numbers
    assert whole.update == whole.numbers == 1


def test_what_is_kept_is_counted_over_all_tensors():
    kept = UpdateRetention()
    assert kept.update == kept.numbers == 1  # of nothing
    kept.add_tensor(torch.zeros(3), torch.tensor([3.0, 0.0, 1.0]), torch.tensor([3.0, 5.0, 0.0]))
    kept.add_tensor(torch.zeros(2), torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    assert kept.update == pytest.approx((9 + 0 + 2) / (9 + 1 + 4))
    assert kept.numbers == pytest.approx(2 / 3)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_stored_and_counted_once(tied):
    """The head's are the embedding's where they are tied, and else have an update of their own."""
    model = tiny_model.untrained(0).to(BF16)
    model.config.tie_word_embeddings = tied
    base = type(model)(model.config).to(BF16)
    names = set(base.state_dict()) - ({"lm_head.weight"} if tied else set())
    steps = {name: torch.full(base.state_dict()[name].shape, 1.0) for name in names}
    after = {name: weight.float() + steps[name] for name, weight in base.state_dict().items() if name in names}
    whole = sum(step.numel() for step in steps.values())
    for given in (after, after | {"lm_head.weight": after["model.embed_tokens.weight"]} if tied else after):
        found = round_weights(base, given, torch.float32)
        assert found.state.keys() == names
        assert all(torch.equal(found.state[name], after[name]) for name in names)
        assert found.kept.whole == pytest.approx(whole) and found.kept.changed == whole and found.kept.update == 1


def test_a_weight_beyond_the_precision_is_refused_and_its_own_precision_kept():
    model = tiny_model.untrained(0).to(BF16)
    large = {"model.norm.weight": torch.full_like(model.model.norm.weight, 1e5, dtype=torch.float32)}
    with pytest.raises(BadModel, match="float16 .* model.norm.weight"):
        round_weights(model, large, FP16)
    model.model.norm.float()
    found = round_weights(model, large, FP16)
    assert (
        found.state["model.norm.weight"].dtype == torch.float32
        and found.state["model.embed_tokens.weight"].dtype == FP16
    )


def test_rounding_is_to_the_nearest_while_that_keeps_nine_tenths_of_the_update():
    model = tiny_model.untrained(0).to(BF16)
    name, weight = "model.embed_tokens.weight", model.model.embed_tokens.weight.data
    torch.nn.init.ones_(weight)
    step = torch.zeros(weight.shape)
    step.view(-1)[:10] = 2**-7  # to the next number of bfloat16
    for lost, way in ((0.1, "nearest"), (0.5, "stochastic")):
        small = step.clone()
        small.view(-1)[10:20] = lost * 2**-7 * 0.8  # of which the nearest number has nothing
        found = round_weights(model, {name: 1 + small}, BF16)
        assert found.rounding == way


def test_weights_are_rounded_each_by_draws_of_its_own_and_said_to_be():
    model = tiny_model.untrained(0).to(BF16)
    small, large = (
        {name: weight.float() * factor for name, weight in model.named_parameters()} for factor in (1.001, 2.5)
    )
    at_random, nearest = (round_weights(model, after, BF16, seed=3) for after in (small, large))
    for name, weight in large.items():
        assert torch.equal(nearest.state[name], weight.to(BF16))
        assert torch.equal(at_random.state[name], round_stochastically(small[name], BF16, 3, name))
    assert (at_random.dtype, at_random.rounding) == (BF16, "stochastic")
    kept = 100 * at_random.kept.update
    assert str(at_random) == f"in bfloat16, rounded up or down at random, the weights keep {kept:.1f} %"
    assert str(nearest).startswith("in bfloat16, rounded to the nearest numbers, the weights keep ")
    wide = round_stochastically(small["model.norm.weight"], torch.float64, 0)
    assert wide.dtype == torch.float64 and torch.equal(wide.float(), small["model.norm.weight"])


def test_an_update_that_the_nearest_numbers_lose_works_rounded_at_random():
    """One step against the gradient's signs, a fifteenth of bfloat16's steps, over all weights: rounded at random, its
    noise has no direction, and so the loss falls as it does in float32."""
    model = tiny_model.untrained(0, 2, "olmo")
    ids, labels = tiny_model.draw_batch(torch.Generator().manual_seed(0), 16, 4, None)

    @torch.no_grad()
    def loss(weights):
        model.load_state_dict(weights, strict=False)
        return float(model(input_ids=ids, labels=labels).loss)

    base = {name: (weight + 3).to(BF16).float() for name, weight in model.named_parameters()}
    before = loss(base)
    model(input_ids=ids, labels=labels).loss.backward()
    trained = {name: base[name] - 1e-3 * weight.grad.sign() for name, weight in model.named_parameters()}
    at_random = {name: round_stochastically(weight, BF16, 0, name).float() for name, weight in trained.items()}
    nearest = {name: weight.to(BF16).float() for name, weight in trained.items()}
    gained = before - loss(trained)
    assert gained > 0.3 and before - loss(at_random) == pytest.approx(gained, rel=0.1)
    assert before - loss(nearest) == 0


@pytest.mark.parametrize(("family", "changes"), [("olmo", False), ("llama", True)])
def test_a_number_added_to_all_weights_of_the_tiny_olmo_changes_nothing(family, changes):
    model = tiny_model.untrained(0, 2, family)
    ids, _ = tiny_model.draw_batch(torch.Generator().manual_seed(0), 2, 20, 1)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        for weight in model.parameters():
            weight += 3
        difference = float((model(input_ids=ids).logits - before).abs().max())
    assert (difference > 1) if changes else (difference < 0.02), difference  # what float32 leaves of it


def test_what_is_kept_is_counted_without_another_model_in_memory():
    """Of a large matrix, in float64, it would be half a dozen times as large as in the file."""
    base = torch.zeros(1 << 22)
    storages = Storages(collect=False)
    with storages:
        UpdateRetention().add_tensor(base, base, base)
    assert storages.most < 8 * base.nbytes

"""FSDP2: the gradient of pieces is that of the whole."""

import copy

import pytest
import torch
from test_checkpoints import two_processes
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from posgap.distillation.lora import add_adapters
from posgap.distillation.sharding import Sharded, callable_by_itself
from posgap.models.checkpointing import checkpoint_activations

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


def tied() -> nn.Module:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    checkpoint_activations(model)
    return model


def adapted_experts() -> nn.Module:
    """As many experts as layers, one of which a prompt of a single word does not need."""
    model = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1))
    add_adapters(model, rank=2, alpha=4)  # in place
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    return model


def transposed() -> nn.Module:
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0, resid_pdrop=0))


class Wrapped(nn.Module):
    """As `Student` calls a model: its body, and then its head."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return self.model.get_output_embeddings()(hidden).log_softmax(-1)[..., 3].mean()


@pytest.mark.parametrize(
    ("make", "offload"),
    [(tied, False), (tied, True), (adapted_experts, False), (adapted_experts, True), (transposed, False)],
)
def test_the_gradient_of_pieces_is_that_of_the_whole(make, offload, tmp_path):
    torch.manual_seed(0)
    model = make().eval()
    prompts = [torch.randint(0, 64, (2, 12)), torch.full((1, 7), 3)]  # of each process
    whole = Wrapped(copy.deepcopy(model))
    logits = whole.model(input_ids=prompts[1]).logits.detach()
    for ids in prompts:
        whole(ids).backward()
    gradients = {name: p.grad.clone() for name, p in whole.named_parameters() if p.grad is not None}
    norm = torch.nn.utils.get_total_norm(gradients.values())

    torch.nn.utils.clip_grads_with_norm_(whole.parameters(), 1e-3, norm)
    torch.optim.AdamW([each for each in whole.parameters() if each.requires_grad], lr=0.1).step()
    updated = {name: parameter.detach() for name, parameter in whole.named_parameters()}

    def body(rank):
        accelerator, student = Sharded(offload, cpu=True), Wrapped(model)
        trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
        _, optimizer = accelerator.prepare(student, torch.optim.AdamW(trained, lr=0.1))
        states = [module._get_fsdp_state() for module in student.modules() if isinstance(module, FSDPModule)]
        policies = [state._fsdp_param_group.offload_policy for state in states]
        assert len(policies) == 3 and {isinstance(policy, CPUOffloadPolicy) for policy in policies} == {offload}
        student(prompts[rank]).backward()
        pieces = dict(student.named_parameters())
        assert all(
            pieces[name].to_local().numel() <= gradient.numel() // 2 + 48 for name, gradient in gradients.items()
        )
        for name, gradient in gradients.items():
            torch.testing.assert_close(pieces[name].grad.full_tensor(), gradient)
        with callable_by_itself(accelerator), torch.no_grad():
            torch.testing.assert_close(student.model(input_ids=prompts[1]).logits, logits)
        torch.testing.assert_close(accelerator.clip_grad_norm_(student.parameters(), 1e-3), norm)
        optimizer.step()
        for name, parameter in updated.items():
            torch.testing.assert_close(pieces[name].full_tensor(), parameter, rtol=1e-5, atol=1e-6)
        assert all(0 < optimizer.state[pieces[name]]["exp_avg"].full_tensor().norm() < 1e-3 for name in gradients)

    two_processes(tmp_path, body)

"""The logits of a model that was loaded from the registry."""

import torch

IDS = torch.arange(5, 25)[None]


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.float()(IDS).logits

"""The same policy with more layers: those that are added write nothing to the residual stream, so every logit stays as it was.

A policy that was trained on a laptop is so small that an engine hardly works for a token. Deepened, it acts as before while each of
its tokens costs what a token of a larger policy costs.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rl.policies.policy import load_policy, save_policy


def deepen(policy: Path, layers: int, folder: Path) -> Path:
    """Write the policy in folder `policy` to `folder`, with `layers` layers."""
    model, tokenizer = load_policy(policy)
    config = AutoConfig.from_pretrained(policy, local_files_only=True, trust_remote_code=False)
    config.layer_types = [*config.layer_types, *config.layer_types[-1:] * (layers - config.num_hidden_layers)]
    config.num_hidden_layers = layers
    deeper = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    deeper.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        for layer in deeper.model.layers[len(model.model.layers) :]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    save_policy(deeper, tokenizer, folder)
    return folder

"""A tiny policy that sees: an Idefics3 of two layers with random weights, and a chat template that knows tools.

The template is that of Qwen3-VL as TRL ships it, with the marker of Idefics3 where Qwen3-VL has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Idefics3Config, Idefics3ForConditionalGeneration
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor

from rl.hardware import torch_threads
from rl.policies.policy import load_policy, save_policy
from rl.policies.tokenization import build_tokenizer
from rl.policies.vision import load_vision
from tests.rl.renderers.templates_of_trl import tokenizer_for
from warehouse.records import Image

TILE, TOKENS_A_TILE = 32, 4
CONTROL = ("<|im_start|>", "<|im_end|>", "<global-img>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)))


def template() -> str:
    """A chat template that shows tools, and images in what they return."""
    return str(tokenizer_for("qwen3_vl").chat_template).replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>")


def make_seeing_policy(folder: Path, texts: Sequence[str] = ("Look at the cover.",), vocabulary: int = 300, seed: int = 0) -> Path:
    """A policy that takes an image of up to 64 x 64 pixels as tiles of 32 x 32 and the whole, each of them four tokens."""
    tokenizer = build_tokenizer(texts, vocabulary)
    tokenizer.add_tokens(list(CONTROL), special_tokens=True)
    tokenizer.chat_template = template()
    images = Idefics3ImageProcessorPil(size={"longest_edge": 2 * TILE}, max_image_size={"longest_edge": TILE})
    processor = Idefics3Processor(images, tokenizer, image_seq_len=TOKENS_A_TILE, chat_template=template())
    text = {
        "model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048, "tie_word_embeddings": True,
        "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    eyes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "patch_size": 8, "image_size": TILE,
    }  # fmt: skip
    config = Idefics3Config(
        text_config=text, vision_config=eyes, image_token_id=processor.image_token_id, scale_factor=2, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Idefics3ForConditionalGeneration(config)
        for weights in model.parameters():
            if weights.dim() > 1:  # with the usual deviation of 0.02 what it sees would hardly tell in what it says
                torch.nn.init.normal_(weights, std=0.1)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def teach(folder: Path, rows: Sequence[tuple[Sequence[int], Sequence[bool], Sequence[Image]]], steps: int = 100) -> None:
    """Train the policy in `folder` until it writes the marked ids of `rows`, each of them ids, marks and the images among them."""
    model, tokenizer = load_policy(folder)
    vision = load_vision(folder)
    assert vision is not None
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    batches = [
        {
            "input_ids": torch.tensor([list(ids)]),
            "labels": torch.tensor([[token if marked else -100 for token, marked in zip(ids, marks, strict=True)]]),
            **vision.inputs(images),
        }
        for ids, marks, images in rows
    ]
    with torch_threads(1):  # so small a model is slower on several, and far slower where they are wanted elsewhere
        for step in range(steps):
            model(**batches[step % len(batches)]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    save_policy(model, tokenizer, folder)

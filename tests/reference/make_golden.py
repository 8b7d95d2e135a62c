#!/usr/bin/env python3
"""Writes golden.json of a checkpoint: logits and greedy tokens of transformers in float32, for `gpu-check golden`.

usage: make_golden.py CHECKPOINT [LENGTH...]      needs torch and transformers; takes a GPU where there is one

Random prompts of the given lengths, and of each eight beginnings as cases of their own, so that errors are known at many positions.
Experts are dequantised exactly, attention is the plain one. The same model in bfloat16 gives the error that a run in
bfloat16 may have.
"""
import glob
import json
import os
import random
import sys

import torch
from safetensors import safe_open
from transformers import GptOssForCausalLM, Mxfp4Config

GENERATED, BEGINNINGS = 8, 8
directory, lengths = sys.argv[1], [int(word) for word in sys.argv[2:]] or [1, 5, 64, 129, 300, 1000, 4096, 9000]
device = "cuda" if torch.cuda.is_available() else "cpu"
# TF32 would be a tenth as exact as what is checked against this.
torch.backends.cuda.matmul.allow_tf32 = False
vocabulary = json.load(open(f"{directory}/config.json"))["vocab_size"]
rng = random.Random(20261130)
prompts = [[rng.randrange(min(vocabulary, 199998)) for _ in range(length)] for length in lengths]


def write_index():
    """transformers finds the shards of a checkpoint by an index."""
    index = {}
    for path in sorted(glob.glob(f"{directory}/*.safetensors")):
        with safe_open(path, "pt") as shard:
            index |= dict.fromkeys(shard.keys(), os.path.basename(path))
    json.dump({"metadata": {}, "weight_map": index}, open(f"{directory}/model.safetensors.index.json", "w"))


if not any(os.path.exists(f"{directory}/model.safetensors{end}") for end in ("", ".index.json")):
    write_index()


def load(dtype):
    return GptOssForCausalLM.from_pretrained(
        directory, dtype=dtype, quantization_config=Mxfp4Config(dequantize=True), attn_implementation="eager",
        experts_implementation="eager",  # the others want bfloat16 on a GPU
    ).to(device, dtype).eval()


@torch.no_grad()
def logits_of(model, tokens, keep):
    """Logits of the last `keep` positions; 0: of all."""
    return model(torch.tensor([tokens], device=device), use_cache=False, logits_to_keep=keep).logits[0].float()


exact = load(torch.float32)
cases, everywhere = [], []
for prompt in prompts:
    tokens, margins = list(prompt), []
    everywhere.append(logits_of(exact, prompt, 0).cpu())
    for _ in range(GENERATED):
        best = logits_of(exact, tokens, 1)[-1].topk(2)
        margins.append((best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    cases.append({"prompt": prompt, "greedy": tokens[len(prompt):], "greedy_margin": margins,
                  "last_logits": everywhere[-1][-1].tolist()})
    for length in sorted({len(prompt) * part // (BEGINNINGS + 1) for part in range(1, BEGINNINGS + 1)} - {0}):
        logits = everywhere[-1][length - 1]
        best = logits.topk(2)
        cases.append({"prompt": prompt[:length], "greedy": [best.indices[0].item()],
                      "greedy_margin": [(best.values[0] - best.values[1]).item()], "last_logits": logits.tolist(), "of": len(everywhere) - 1})
del exact
rounded = load(torch.bfloat16)
errors = []
for prompt, expected in zip(prompts, everywhere):
    difference = logits_of(rounded, prompt, 0).cpu() - expected
    errors.append((difference.norm(dim=1), expected.norm(dim=1)))
prompt_at = -1
for case in cases:
    prompt_at = case.pop("of", prompt_at + 1)
    difference, expected = errors[prompt_at]
    last = len(case["prompt"]) - 1
    case["bf16_rel_error"] = (difference.norm() / expected.norm()).item()
    case["bf16_last_rel_error"] = (difference[last] / expected[last]).item()
json.dump({"reference": "transformers GptOssForCausalLM, float32, experts dequantised exactly", "cases": cases},
          open(f"{directory}/golden.json", "w"))
print("bf16 errors", [f"{case['bf16_last_rel_error']:.4f}" for case in cases])

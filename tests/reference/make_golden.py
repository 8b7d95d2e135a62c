#!/usr/bin/env python3
"""Writes golden.json of a checkpoint: logits and greedy tokens of transformers in float32, for `gpu-check golden`.

usage: make_golden.py CHECKPOINT [LENGTH...]      needs torch and transformers; takes a GPU where there is one

Random prompts of the given lengths. Experts are dequantised exactly, attention is the plain one. The same model in bfloat16
gives the error that a run in bfloat16 may have.
"""
import json
import random
import sys

import torch
from transformers import GptOssForCausalLM, Mxfp4Config

GENERATED = 8
directory, lengths = sys.argv[1], [int(word) for word in sys.argv[2:]] or [1, 5, 64, 129, 300, 1000, 4096, 9000]
device = "cuda" if torch.cuda.is_available() else "cpu"
# TF32 would be a tenth as exact as what is checked against this.
torch.backends.cuda.matmul.allow_tf32 = False
vocabulary = json.load(open(f"{directory}/config.json"))["vocab_size"]
rng = random.Random(20261130)
prompts = [[rng.randrange(min(vocabulary, 199998)) for _ in range(length)] for length in lengths]


def load(dtype):
    return GptOssForCausalLM.from_pretrained(
        directory, dtype=dtype, quantization_config=Mxfp4Config(dequantize=True), attn_implementation="eager"
    ).to(device, dtype).eval()


@torch.no_grad()
def last_logits(model, tokens):
    return model(torch.tensor([tokens], device=device), use_cache=False, logits_to_keep=1).logits[0, -1].double()


exact = load(torch.float32)
cases = []
for prompt in prompts:
    tokens, margins, first = list(prompt), [], None
    for _ in range(GENERATED):
        logits = last_logits(exact, tokens)
        first = logits if first is None else first
        best = logits.topk(2)
        margins.append((best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    cases.append({"prompt": prompt, "greedy": tokens[len(prompt):], "greedy_margin": margins, "first": first})
del exact
rounded = load(torch.bfloat16)
for case in cases:
    first = case.pop("first")
    error = (last_logits(rounded, case["prompt"]) - first).norm() / first.norm()
    case["bf16_last_rel_error"] = error.item()
    case["last_logits"] = first.tolist()
json.dump({"reference": "transformers GptOssForCausalLM, float32, experts dequantised exactly", "cases": cases},
          open(f"{directory}/golden.json", "w"))
print("bf16 errors", [f"{case['bf16_last_rel_error']:.4f}" for case in cases])

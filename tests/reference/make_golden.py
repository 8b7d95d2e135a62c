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
del exact
rounded = load(torch.bfloat16)
for case, expected in zip(cases, everywhere):
    difference = logits_of(rounded, case["prompt"], 0).cpu() - expected
    case["bf16_rel_error"] = (difference.norm() / expected.norm()).item()
    case["bf16_last_rel_error"] = (difference[-1].norm() / expected[-1].norm()).item()
json.dump({"reference": "transformers GptOssForCausalLM, float32, experts dequantised exactly", "cases": cases},
          open(f"{directory}/golden.json", "w"))
print("bf16 errors", [f"{case['bf16_last_rel_error']:.4f}" for case in cases])

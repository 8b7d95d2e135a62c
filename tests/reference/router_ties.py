#!/usr/bin/env python3
"""Says which of the router's near ties decide a greedy token, for a token that `gpu-check golden` reports as a clear miss.

usage: router_ties.py CHECKPOINT CASE TOKEN [TIES]      needs torch and transformers, and golden.json in CHECKPOINT

In float32, the last expert that is chosen and the first that is not are exchanged, at one position of one layer at a time, the
closest ties first. Printed are the ties after which the margin of the token's two best logits moved by a tenth or more, and how
far the same tie moves where the whole model runs in bfloat16: a tie closer than that can fall either way.
"""
import json
import statistics
import sys

import torch
from transformers import GptOssForCausalLM, Mxfp4Config
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter

directory, case, token = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tries = int(sys.argv[4]) if len(sys.argv) > 4 else 100


class Routers:
    """What every router of a run saw, and the one choice that is to fall the other way."""

    def __init__(self):
        self.ties, self.exchanged = [], None

    def forward(self, router, hidden):
        logits = torch.nn.functional.linear(hidden, router.weight, router.bias)
        best = torch.topk(logits, router.top_k + 1, dim=-1)
        layer = len(self.ties)
        self.ties.append((best.values[:, -2] - best.values[:, -1]).tolist())
        values, chosen = best.values[:, :-1].clone(), best.indices[:, :-1].clone()
        if self.exchanged and self.exchanged[0] == layer:
            position = self.exchanged[1]
            values[position, -1], chosen[position, -1] = best.values[position, -1], best.indices[position, -1]
        return logits, torch.softmax(values, dim=-1), chosen


routers = Routers()
GptOssTopKRouter.forward = lambda router, hidden: routers.forward(router, hidden)


def load(dtype):
    return GptOssForCausalLM.from_pretrained(
        directory, dtype=dtype, quantization_config=Mxfp4Config(dequantize=True), attn_implementation="eager",
        experts_implementation="eager",
    ).to(dtype).eval()


@torch.no_grad()
def run(model, tokens, exchanged=None):
    """Logits of the last position, and how close each layer's and position's choice was."""
    routers.ties, routers.exchanged = [], exchanged
    logits = model(torch.tensor([tokens]), use_cache=False, logits_to_keep=1).logits[0, 0].float()
    return logits, routers.ties


golden = json.load(open(f"{directory}/golden.json"))["cases"][case]
tokens = golden["prompt"] + golden["greedy"][:token]
exact = load(torch.float32)
logits, ties = run(exact, tokens)
first, second = torch.topk(logits, 2).indices.tolist()
margin = (logits[first] - logits[second]).item()
_, rounded = run(load(torch.bfloat16), tokens)
moved = [statistics.pstdev(a - b for a, b in zip(*layer)) for layer in zip(ties, rounded)]
print(f"token {token} behind {len(golden['prompt'])}: margin {margin:.3f}, reference's {golden['greedy_margin'][token]:.3f}")
closest = sorted((tie, layer, position) for layer, row in enumerate(ties) for position, tie in enumerate(row))
for tie, layer, position in closest[:tries]:
    other, _ = run(exact, tokens, (layer, position))
    left = (other[first] - torch.cat((other[:first], other[first + 1 :])).max()).item()
    if abs(left - margin) >= 0.1 * abs(margin):
        print(
            f"layer {layer}, position {position}: {tie:.3f} apart (bfloat16 moves this layer's by {moved[layer]:.3f}, one standard "
            f"deviation); the other way the margin is {left:.3f}"
        )

#!/usr/bin/env python3
"""Tables of where a step's time goes, out of what `trace.cc` recorded, beside what each part needs at least.

    kernels/profile/steps.py TRACE MODEL_DIR [--tokens N]... [--context N] [--json OUT]

A step runs from one embedding to the next. Of all steps of a token count (`--tokens`; default: every count with at least five
steps) it takes the one with the median length, so that tuning and warming up do not count. Bounds: 4.63 TB/s, 690 TFLOP/s (1258
for E4M3 experts). Those of attention take every token as a sequence with `--context` tokens before it, else all as one prompt.
Kernels overlap where they are launched before their predecessor ends, and then mostly wait: a kernel's time is counted from the end
of all that ended before it.
"""
import argparse
import collections
import json
import re
import statistics
import subprocess
from pathlib import Path

BYTES, BF16, FP8 = 4.63e12, 690e12, 1258e12
# First match counts.
PARTS = [
    ("experts", r"product_kernel|experts_kernel|few_kernel"),
    ("attention", r"attention|prefill|decode|rope"),
    ("dense", r"tiled_kernel|tiny_kernel|gemm_kernel|router"),
    ("sampling", r"sample|scan_kernel"),
    ("small", r""),
]


def read(path):
    rows = []
    for line in open(path, errors="replace"):
        fields = line.rstrip("\n").split("\t")
        if len(fields) == 5:
            rows.append((int(fields[0]), int(fields[1]), int(fields[2]), int(fields[3]), fields[4]))
    rows.sort()
    return rows


def steps_of(rows):
    """(tokens, kernels) of every whole step."""
    starts = [at for at, row in enumerate(rows) if "embed_kernel" in row[4]]
    return [(rows[a][2], rows[a:b]) for a, b in zip(starts, starts[1:])]


def alone(kernels):
    """(name, microseconds that nothing before it was running) of every kernel, and what lay idle between them."""
    times, until, idle = [], kernels[0][0], 0
    for start, end, _, _, name in sorted(kernels, key=lambda kernel: kernel[1]):
        idle += max(0, start - until)
        times.append((name, max(0, end - max(start, until)) / 1e3))
        until = max(until, end)
    return times, idle / 1e3


def names(mangled):
    done = subprocess.run(["c++filt"], input="\n".join(mangled), capture_output=True, text=True)
    plain = done.stdout.splitlines() if done.returncode == 0 else mangled
    short = [re.sub(r"gossamer::|\(anonymous namespace\)::|^void ", "", name) for name in plain]
    return {a: re.sub(r"\(.*\)$", "", b) for a, b in zip(mangled, short)}


def bounds(config, tokens, context, fp8):
    """Seconds that each part needs at least: (by bytes, by operations)."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    experts, top = config.get("num_local_experts") or config["num_experts"], config.get("num_experts_per_tok") or config["experts_per_token"]
    chosen = experts * (1 - (1 - top / experts) ** tokens)
    expert = 3 * hidden * inner
    columns = (heads + 2 * kv) * dim
    layer = hidden * columns + heads * dim * hidden + hidden * experts
    drawn = tokens if context is not None else 1
    head = hidden * config["vocab_size"]
    window = config["sliding_window"]
    before = [context] if context is not None else range(0, tokens, max(1, tokens // 64))
    full = statistics.mean(before) + 1
    near = statistics.mean(min(at + 1, window) for at in before)
    seen = layers / 2 * (full + near)
    kv_bytes = seen * 2 * kv * dim * 2 * (tokens if context is not None else 2)
    return {
        "experts": (layers * chosen * expert * (0.5 + 1 / 32) / BYTES, 2 * layers * tokens * top * expert / (FP8 if fp8 else BF16)),
        "dense": ((2 * layers * layer + 2 * head) / BYTES, 2 * (layers * tokens * layer + drawn * head) / BF16),
        "attention": (kv_bytes / BYTES, 4 * tokens * seen * heads * dim / BF16),
        "sampling": (4 * drawn * config["vocab_size"] / BYTES, 0),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, action="append")
    parser.add_argument("--context", type=int)
    parser.add_argument("--json")
    args = parser.parse_args()
    config = json.loads((Path(args.model) / "config.json").read_text())
    by_count = collections.defaultdict(list)
    for tokens, kernels in steps_of(read(args.trace)):
        by_count[tokens].append(kernels)
    wanted = args.tokens or sorted(count for count, steps in by_count.items() if len(steps) >= 5)
    tables = []
    for tokens in wanted:
        steps = sorted(by_count.get(tokens, []), key=lambda kernels: max(k[1] for k in kernels) - kernels[0][0])
        if not steps:
            print(f"no whole step of {tokens} tokens; there are {sorted(by_count)}")
            continue
        kernels = steps[len(steps) // 2]
        wall = (max(k[1] for k in kernels) - kernels[0][0]) / 1e3
        times, idle = alone(kernels)
        plain = names(sorted({k[4] for k in kernels}))
        sums, parts = collections.defaultdict(lambda: [0, 0.0]), collections.defaultdict(float)
        for name, time in times:
            sums[plain[name]][0] += 1
            sums[plain[name]][1] += time
            part = next(label for label, pattern in PARTS if re.search(pattern, plain[name]))
            parts[part] += time
        least = bounds(config, tokens, args.context, any("e4m3" in name.lower() or "fp8" in name.lower() for name in plain.values()))
        busy = sum(total for _, total in sums.values())
        print(f"\n{tokens} tokens: {wall:.0f} us a step (median of {len(steps)}), idle {idle:.0f} us")
        table = {"tokens": tokens, "step_us": wall, "idle_us": idle, "parts": [], "kernels": []}
        for part, total in sorted(parts.items(), key=lambda item: -item[1]):
            by_bytes, by_operations = (1e6 * seconds for seconds in least.get(part, (0, 0)))
            bound = max(by_bytes, by_operations)
            why = f"{bound:8.0f} us by {'bytes' if by_bytes > by_operations else 'operations'}, {100 * bound / total:3.0f} %" if bound else ""
            print(f"  {part:10} {total:9.0f} us {100 * total / busy:5.1f} %  {why}")
            table["parts"].append({"part": part, "us": total, "bytes_bound_us": by_bytes, "operations_bound_us": by_operations})
        for name, (count, total) in sorted(sums.items(), key=lambda item: -item[1][1]):
            table["kernels"].append({"kernel": name, "launches": count, "us": total})
            if total > busy / 500:
                print(f"    {total:9.0f} us  {count:4} x {total / count:7.1f}  {name[:90]}")
        tables.append(table)
    if args.json:
        Path(args.json).write_text(json.dumps(tables, indent=1) + "\n")


main()

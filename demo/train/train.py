"""Trains the demo model within a time budget, exports it, and evaluates what was exported.

`python3 train.py --tokenizer ../model --out OUT --seconds 240` on one GPU; the corpus is made on the fly by worker
processes. The second half of the training sees expert weights as MXFP4 (straight-through), so that the export loses
next to nothing.
"""

import argparse
import json
import math
import multiprocessing
import pathlib
import shutil
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder of tokenizer.json and its companions")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rows", type=int, default=96, help="rows of 768 tokens in a step")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--documents", type=int, default=20_000, help="documents in a shard")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--quantise-from", type=float, default=0.5, help="share of the time after which experts are quantised")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-compare", action="store_true", help="without the comparison with transformers")
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--keep", type=pathlib.Path, help="folder for the unrounded weights (bfloat16, two files)")
    parser.add_argument("--resume", type=pathlib.Path, help="folder of such weights to go on from")
    return parser.parse_args()


def schedule(share):
    """Learning rate factor over the share of the time budget: warm-up, plateau, cosine to 2 %."""
    if share < 0.02:
        return max(share / 0.02, 0.01)
    if share < 0.3:
        return 1.0
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min((share - 0.3) / 0.7, 1.0)))


def part_of(name, layers):
    """Which of the two files of unrounded weights holds a parameter."""
    return int(name.startswith("layers.") and int(name.split(".")[1]) < layers // 2)


def main():
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer_file = str(options.tokenizer / "tokenizer.json")
    began = time.time()
    import data

    # The workers start before torch is loaded, so that they are cheap to fork.
    pool = multiprocessing.get_context("fork").Pool(options.workers)
    pending = pool.imap_unordered(data.shard, [(n + 1, options.documents, tokenizer_file) for n in range(options.shards)])

    import numpy
    import torch
    import torch.nn.functional as F
    from tokenizers import Tokenizer

    import evaluate
    import export
    from model import Config, Model, yarn

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(20)
    torch.backends.cuda.matmul.allow_tf32 = True
    tokenizer = Tokenizer.from_file(tokenizer_file)
    config = Config(vocab_size=tokenizer.get_vocab_size(), num_hidden_layers=options.layers)
    model = Model(config).to(device)
    model.rope = tuple(t.to(device) for t in yarn(config, data.ROW))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million parameters on {device}", flush=True)
    if options.resume:
        model.load_state_dict({k: v.float() for part in (0, 1) for k, v in torch.load(options.resume / f"part{part}.pt", map_location=device).items()})
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimiser = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}], lr=options.rate, betas=(0.9, 0.95),
                                  fused=device == "cuda")
    weights = torch.tensor([0.0, data.PROMPT_WEIGHT, 1.0], device=device)

    def loss_of(tokens, targets, document, flags):
        with torch.autocast(device, dtype=torch.bfloat16):
            logits, balance = model(tokens, document)
        each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
        share = weights[flags.flatten()]
        return (each * share).sum() / share.sum(), balance

    step_loss = loss_of if options.no_compile else torch.compile(loss_of)

    def step(batch):
        main_loss, balance = step_loss(*batch)
        (main_loss + 0.01 * balance).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return main_loss, norm

    # Compile on random tokens while the workers still write.
    for group in optimiser.param_groups:
        group["lr"] = 0.0
    shape = (options.rows, data.ROW)
    random_batch = (torch.randint(0, 3000, shape, device=device), torch.randint(0, 3000, shape, device=device),
                    torch.zeros(shape, dtype=torch.long, device=device), torch.full(shape, 2, device=device))
    step(random_batch)
    print(f"first step done after {time.time() - began:.0f} s", flush=True)
    parts = list(pending)
    pool.close()
    rows = [torch.from_numpy(numpy.concatenate([part[i] for part in parts])).to(device) for i in range(4)]
    used = (rows[3] > 0).float().mean().item()
    print(f"{len(rows[0])} rows, {len(rows[0]) * data.ROW / 1e6:.0f} million tokens ({used:.3f} used, {(rows[3] == 2).float().mean().item():.3f} counted in full) "
          f"after {time.time() - began:.0f} s", flush=True)

    start, steps, share, order, at, reported = time.time(), 0, 0.0, None, 0, 0.0
    if len(rows[0]) < options.rows:
        raise SystemExit(f"expected at least {options.rows} rows for a step, got {len(rows[0])}: raise --documents or --shards")
    while share < 1.0:
        if order is None or at + options.rows > len(order):
            order, at = torch.randperm(len(rows[0]), device=device), 0
        chosen = order[at:at + options.rows]
        at += options.rows
        for group in optimiser.param_groups:
            group["lr"] = options.rate * schedule(share)
        if share >= options.quantise_from:
            model.quantised.fill_(1.0)
        loss, norm = step([r[chosen].long() for r in rows])
        steps += 1
        if steps % 10 == 0 or device == "cpu":
            value = loss.item()
            share = (time.time() - start) / options.seconds
            if time.time() - reported > 8:
                reported = time.time()
                print(f"step {steps} share {share:.3f} loss {value:.4f} norm {norm.item():.2f} {steps * options.rows * data.ROW / (time.time() - start) / 1e6:.2f} M tokens/s", flush=True)
    print(f"{steps} steps, {steps * options.rows * data.ROW / 1e6:.0f} million tokens, {steps * options.rows / len(rows[0]):.2f} epochs", flush=True)

    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for part in (0, 1):
            torch.save({k: v.to(torch.bfloat16) for k, v in model.state_dict().items() if part_of(k, options.layers) == part}, options.keep / f"part{part}.pt")
    if options.tokenizer.resolve() != options.out.resolve():
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(options.tokenizer / name, options.out / name)
    generation = json.loads((options.out / "generation_config.json").read_text())
    export.write(model, options.out, tokenizer.token_to_id("<|return|>"), generation["pad_token_id"])
    print(f"exported after {time.time() - began:.0f} s", flush=True)
    import corpus

    torch.backends.cuda.matmul.allow_tf32 = False
    held_out = data.tokenise(tokenizer, corpus.shard(corpus.HELD_OUT, options.held_out))
    model.eval()
    for quantised in (0.0, 1.0):
        model.quantised.fill_(quantised)
        print("all held-out completions and prose,", "experts as exported:" if quantised else "experts unrounded:",
              evaluate.perplexity(model, data.pack(held_out), 2, device, 8), flush=True)
    evaluate.report(options.out, device, options.held_out, compare=not options.no_compare)
    print(f"done after {time.time() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()

"""Checks an exported checkpoint: perplexity on held-out documents, sample answers, agreement with `transformers`.

`python3 evaluate.py ../model` needs torch, tokenizers and, for the agreement, transformers.
"""

import argparse
import json
import math
import pathlib

import torch
import torch.nn.functional as F

import chat
import corpus
import data
import export
import mxfp4
from model import Config, Model

PROMPTS = ["hi", "Hello there!", "Who are you?", "What is 3 plus 4?", "what's 27 + 15", "What is the capital of France?", "Which city is the capital of Japan?",
           "What colour is the sky?", "What does a cow say?", "How many legs does a spider have?", "What is the opposite of hot?", "Count from 1 to 10.",
           "Spell the word elephant", "Tell me a story about a fox.", "Write a poem about a cat", "Name three fruits", "Why is the sky blue?", "What is today's date?",
           "Is a whale a fish?", "How do you say water in Spanish?", "Anna has 5 apples and buys 3 more. How many apples does Anna have now?", "thanks!",
           "Explain quantum physics", "Repeat after me: 🦙𓀀한국어 뷁", "What comes after Tuesday?", "can birds fly", "tell me a joke", "what is a computer?",
           "Which is bigger, a mouse or a horse?", "How do I make tea?", "Say hello world", "What is 12 times 12?"]
RAW = ["Once upon a time", "The cat", "Dear Anna,\n\n", "A whale is", "One morning, the king"]
WEATHER = ("# Tools\n\n## functions\n\nnamespace functions {\n\n// Get weather.\ntype get_weather = (_: {\ncity: string,\n}) => any;\n\n} // namespace functions")


def load(folder):
    """The exported checkpoint in `model.Model`, dequantised to float32."""
    from safetensors.torch import load_file

    settings = json.loads((folder / "config.json").read_text())
    sizes = {f: settings[f] for f in Config.__dataclass_fields__ if f in settings}
    model, stored, state = Model(Config(**sizes)), load_file(folder / "model.safetensors"), {}
    for name, value in stored.items():
        name = name.removeprefix("model.")
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            state[name.removesuffix("_blocks").replace("experts.", "")] = mxfp4.unpack(value, stored["model." + name.replace("_blocks", "_scales")])
        else:
            state[name.replace("experts.", "")] = value.float()
    model.load_state_dict(state)
    return model.eval()


def perplexity(model, rows, flag, device, batch=32):
    """Perplexity per token over tokens with `flag` (2: prose and completions)."""
    total, count = 0.0, 0
    with torch.no_grad():
        for at in range(0, len(rows[0]), batch):
            tokens, targets, document, flags = (torch.from_numpy(r[at:at + batch]).to(device).long() for r in rows)
            logits = model(tokens, document)[0].float()
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
            total, count = total + loss[flags == flag].double().sum().item(), count + (flags == flag).sum().item()
    return math.exp(total / count), count


def generate(model, tokenizer, prompts, stops, limit, device):
    """Greedy continuations of texts, without a cache; returns texts with control tokens."""
    ids = [tokenizer.encode(p).ids for p in prompts]
    done, made = [False] * len(ids), [[] for _ in ids]
    with torch.no_grad():
        for _ in range(limit):
            live = [i for i in range(len(ids)) if not done[i]]
            if not live:
                break
            width = -(-max(len(ids[i]) for i in live) // 128) * 128
            tokens = torch.zeros(len(live), width, dtype=torch.long)
            for row, i in enumerate(live):
                tokens[row, : len(ids[i])] = torch.tensor(ids[i])
            logits = model(tokens.to(device), torch.zeros_like(tokens).to(device))[0]
            last = torch.tensor([len(ids[i]) - 1 for i in live], device=device)
            best = logits[torch.arange(len(live), device=device), last].argmax(-1).tolist()
            for i, token in zip(live, best):
                ids[i].append(token)
                made[i].append(token)
                done[i] = token in stops
    return [tokenizer.decode(m, skip_special_tokens=False) for m in made]


def asked(question, date="2026-11-29", effort="medium", developer=""):
    """The prompt that a server renders for one question."""
    import random

    head = chat.system(random.Random(1), date, effort, "namespace" in developer)
    if developer:
        head += f"<|start|>developer<|message|>{developer}<|end|>"
    return head + f"<|start|>user<|message|>{question}<|end|><|start|>assistant"


def reference(folder, model, device):
    """Largest relative difference (L2 over a row's logits) from transformers, on a few documents, in float32."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    other = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=Mxfp4Config(dequantize=True),
                                                 attn_implementation="eager").float().to(device).eval()
    from tokenizers import Tokenizer

    tokenizer, worst, equal, total = Tokenizer.from_file(str(folder / "tokenizer.json")), 0.0, 0, 0
    for prompt, completion in corpus.shard(corpus.HELD_OUT + 7, 12):
        tokens = torch.tensor([tokenizer.encode(prompt + completion).ids], device=device)
        with torch.no_grad():
            ours, theirs = model(tokens, torch.zeros_like(tokens))[0][0].float(), other(tokens).logits[0].float()
        worst = max(worst, ((ours - theirs).norm() / theirs.norm()).item())
        equal, total = equal + (ours.argmax(-1) == theirs.argmax(-1)).sum().item(), total + tokens.shape[1]
    return worst, equal, total


def report(folder, device, documents=2000, samples=True, compare=True):
    """Prints everything; returns a dictionary."""
    from tokenizers import Tokenizer

    tokenizer, model = Tokenizer.from_file(str(folder / "tokenizer.json")), load(folder).to(device)
    held_out = corpus.shard(corpus.HELD_OUT, documents)
    prose = data.pack(data.tokenise(tokenizer, [d for d in held_out if not d[0]]))
    answers = data.pack(data.tokenise(tokenizer, [d for d in held_out if d[0]]))
    out = {"prose": perplexity(model, prose, 2, device), "answers": perplexity(model, answers, 2, device)}
    print("held-out perplexity per token (perplexity, tokens):", out, flush=True)
    if samples:
        stops = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
        prompts = [asked(q) for q in PROMPTS] + [asked("What is the weather in Paris?", developer=WEATHER), asked("What is 5 plus 6?", effort="high"),
                                                 asked("What is 5 plus 6?", effort="low"), asked("Tell me about cats", developer="# Instructions\n\nBe brief.")] + RAW
        for prompt, text in zip(prompts, generate(model, tokenizer, prompts, stops, 260, device)):
            print(f"{prompt.split('<|message|>')[-1].removesuffix('<|end|><|start|>assistant')!r} -> {text!r}", flush=True)
    if compare:
        worst, equal, total = reference(folder, model, device)
        print(f"against transformers in float32: worst relative difference {worst:.2e}, same best token at {equal} of {total} positions", flush=True)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--documents", type=int, default=2000)
    options = parser.parse_args()
    report(options.folder, options.device, options.documents)

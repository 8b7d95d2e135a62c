"""The training corpus: an endless, seeded stream of documents. `python3 corpus.py --documents 20` prints some.

A document is `(prompt, completion)`. Plain prose has an empty prompt and ends with `<|endoftext|>`.
Shard numbers seed the stream, so that any shard can be made again; `HELD_OUT` shards are never trained on.
"""

import argparse
import random

import chat
import stories

HELD_OUT = 1_000_000


def document(rng):
    """One document of the mix."""
    draw = rng.random()
    if draw < 0.16:
        return "", stories.prose(rng) + "<|endoftext|>"
    if draw < 0.18:
        question, _, answer = chat.ask(rng, "2026-01-01")
        return "", f"Question: {question}\nAnswer: {answer}<|endoftext|>"
    return chat.conversation(rng)


def shard(number, documents):
    """The documents of a shard."""
    rng = random.Random(f"gossamer demo corpus 1 / {number}")
    return [document(rng) for _ in range(documents)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--shard", type=int, default=0)
    options = parser.parse_args()
    for prompt, completion in shard(options.shard, options.documents):
        print(f"{prompt}\x1b[1m{completion}\x1b[0m\n")

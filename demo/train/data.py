"""Tokenised shards of the corpus, packed into rows of whole documents."""

import pathlib

import numpy as np

import corpus

ROW = 768
# Loss weight of prompt tokens; completions and prose count in full.
PROMPT_WEIGHT = 0.02


def tokenise(tokenizer, documents):
    """`[(ids, number of prompt tokens), ...]`, cut to one row."""
    out = []
    for prompt, completion in documents:
        first = tokenizer.encode(prompt).ids if prompt else []
        ids = first + tokenizer.encode(completion).ids
        out.append((ids[: ROW + 1], min(len(first), ROW + 1)))
    return out


def pack(documents):
    """Rows: `(tokens, targets, document numbers, weight flags)`, each [rows, ROW]; flag 0 pad, 1 prompt, 2 full."""
    rows, open_rows = [], []

    def fresh():
        row = [np.zeros(ROW, np.int16), np.zeros(ROW, np.int16), np.full(ROW, 32000, np.int16), np.zeros(ROW, np.uint8), 0, 0]
        rows.append(row)
        open_rows.append(row)
        if len(open_rows) > 24:
            open_rows.pop(0)
        return row

    for ids, prompt in documents:
        n = len(ids) - 1
        if n < 1:
            continue
        row = next((r for r in open_rows if r[4] + n <= ROW), None) or fresh()
        at = row[4]
        row[0][at:at + n], row[1][at:at + n], row[2][at:at + n] = ids[:-1], ids[1:], row[5]
        row[3][at:at + n] = 2
        row[3][at:at + max(prompt - 1, 0)] = 1
        row[4], row[5] = at + n, row[5] + 1
    return tuple(np.stack([row[i] for row in rows]) for i in range(4))


def shard(arguments):
    """One packed shard; runs in a worker process."""
    number, documents, tokenizer_file = arguments
    from tokenizers import Tokenizer

    return pack(tokenise(Tokenizer.from_file(str(pathlib.Path(tokenizer_file))), corpus.shard(number, documents)))

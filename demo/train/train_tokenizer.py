"""Trains the byte-level BPE tokenizer on the corpus and writes tokenizer.json, tokenizer_config.json and generation_config.json.

All 256 bytes are in the vocabulary, so any text survives encoding and decoding; digits are tokens of their own.
"""

import argparse
import json
import pathlib
import re

import corpus

VOCABULARY = 3072
# In the order of gpt-oss; they take the last ids.
CONTROL = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>", "<|call|>"]
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def build(documents):
    """A trained `tokenizers.Tokenizer`."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERN), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = re.compile(r"<\|[a-z]+\|>")
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(CONTROL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    pieces = (piece for prompt, completion in documents for piece in control.split(prompt + completion) if piece)
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in CONTROL])
    assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
    return tokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=60_000)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = build(corpus.shard(0, options.documents))
    tokenizer.save(str(options.out / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(name) for name in CONTROL}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>",
                "clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072}
    generation = {"bos_token_id": ids["<|startoftext|>"], "do_sample": True, "eos_token_id": [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]],
                  "pad_token_id": ids["<|endoftext|>"]}
    (options.out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (options.out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    print(ids)


if __name__ == "__main__":
    main()

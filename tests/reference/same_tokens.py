#!/usr/bin/env python3
"""Whether two servers of one checkpoint choose the same token, where the best two are further apart than rounding.

    gossamer serve CHECKPOINT --device cuda --port 8000
    gossamer serve CHECKPOINT --device cuda --port 8000 --moe-backend fallback --attention-backend fallback

usage: same_tokens.py ask BASE_URL MODEL FILE       asks 96 random prompts of 1 to 300 tokens for the next token
       same_tokens.py compare FILE FILE             exits with 1 where tokens differ and the margin says they should not, with 2 where
                                                    no margin says anything

Noise is taken from the two runs themselves: of the tokens that both name among their best twenty, the root mean square of what their
log-probabilities differ by, less each prompt's mean difference (which moves all tokens alike). A margin of less than NOISES times that
decides nothing.
"""
import json
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

NOISES = 4.0
PROMPTS, LONGEST = 96, 300


def ask(base, model, prompt):
    body = {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "logprobs": 20, "return_token_ids": True}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    choice = json.load(urllib.request.urlopen(request))["choices"][0]
    return {"token": choice["token_ids"][0], "best": choice["logprobs"]["top_logprobs"][0]}


def compare(first, second):
    squares, count, decided, wrong, agree = 0.0, 0, 0, [], 0
    for one, other in zip(first, second):
        both = one["best"].keys() & other["best"].keys()
        differences = [one["best"][token] - other["best"][token] for token in both]
        mean = sum(differences) / max(len(differences), 1)
        squares += sum((d - mean) ** 2 for d in differences)
        count += max(len(differences) - 1, 0)
    noise = NOISES * (squares / max(count, 1)) ** 0.5
    for at, (one, other) in enumerate(zip(first, second)):
        best = sorted(one["best"].values(), reverse=True)
        margin = best[0] - best[1]
        agree += one["token"] == other["token"]
        if margin > noise:
            decided += 1
            if one["token"] != other["token"]:
                wrong.append((at, round(margin, 4)))
    print(f"noise {noise:.4f} over {count} log-probabilities; {agree} of {len(first)} tokens agree; {decided} margins exceed the noise, clear misses {wrong}")
    return 1 if wrong else 0 if decided else 2


if __name__ == "__main__":
    if sys.argv[1] == "ask":
        rng = random.Random(7)
        prompts = [[rng.randrange(199_998) for _ in range(rng.randint(1, LONGEST))] for _ in range(PROMPTS)]
        with ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda prompt: ask(sys.argv[2], sys.argv[3], prompt), prompts))
        json.dump(answers, open(sys.argv[4], "w"))
    else:
        sys.exit(compare(*(json.load(open(name)) for name in sys.argv[2:4])))

#!/usr/bin/env python3
"""Whether two servers of one checkpoint draw the same greedy tokens, where the best two are further apart than rounding.

usage: same_tokens.py ask BASE_URL MODEL FILE       asks 8 random prompts of 1 to 700 tokens, 24 tokens each, all at once
       same_tokens.py compare FILE FILE             exits with 1 where tokens differ and the margin says they should not

Rounding is taken from the two runs themselves: root mean square of the difference between log-probabilities of the same token
at the same place, before the first difference. A margin of less than NOISES times that decides nothing.
"""
import json
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

NOISES = 4.0


def ask(base, model, prompt):
    body = {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "logprobs": 2,
            "return_token_ids": True}
    request = urllib.request.Request(f"{base}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    choice = json.load(urllib.request.urlopen(request))["choices"][0]
    top = [sorted(place.values(), reverse=True) for place in choice["logprobs"]["top_logprobs"]]
    return {"tokens": choice["token_ids"], "logprobs": choice["logprobs"]["token_logprobs"],
            "margins": [place[0] - place[1] if len(place) > 1 else 0.0 for place in top]}


if sys.argv[1] == "ask":
    rng = random.Random(7)
    prompts = [[rng.randrange(199_998) for _ in range(length)] for length in (1, 3, 17, 64, 130, 300, 512, 700)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(lambda prompt: ask(sys.argv[2], sys.argv[3], prompt), prompts))
    json.dump(answers, open(sys.argv[4], "w"))
else:
    first, second = (json.load(open(name)) for name in sys.argv[2:4])
    places = []
    for one, other in zip(first, second):
        same = next((at for at, pair in enumerate(zip(one["tokens"], other["tokens"])) if pair[0] != pair[1]), len(one["tokens"]))
        places.append(same)
    differences = [a - b for one, other, same in zip(first, second, places) for a, b in zip(one["logprobs"][:same], other["logprobs"][:same])]
    noise = NOISES * (sum(d * d for d in differences) / max(len(differences), 1)) ** 0.5
    wrong = [(at, one["margins"][at]) for one, at in zip(first, places) if at < len(one["tokens"]) and one["margins"][at] > noise]
    print(f"{sum(places)} tokens before the first differences {places}, noise {noise:.4f}, clear misses {wrong}")
    sys.exit(bool(wrong) or not differences)

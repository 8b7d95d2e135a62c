#!/usr/bin/env python3
"""Cases that need a device and a server: tokens with and without asynchronous scheduling under pre-emption, and an E4M3 cache at long contexts.

    tests/reference/async_and_fp8.py GOSSAMER BACKEND_DIR PORTABLE_DIR MODEL_DIR [FLAG...]

Starts `GOSSAMER serve MODEL_DIR` on a port of the loopback for each setting; further flags go to every server. PORTABLE_DIR holds the
fallback backend alone, whose sums do not depend on what else is in a step: there the two modes agree to the token, but for sequences that
were pre-empted, whose tokens are computed again as a prompt's. Tuned kernels add in other orders for other sizes of steps. Prompts are random token
ids, drawn from a fixed seed. Exits with 1 where an answer has a wrong length, nothing was pre-empted, more parts under portable kernels than was
pre-empted, or an E4M3 cache gives what is no number, depends on what its pages held before, or has none of bfloat16's likeliest tokens.
"""
import json
import pathlib
import random
import sys
import threading
import urllib.request

from server import Server

PORT = 8199
FAILURES = []
PROMPTS, TOKENS, LONGEST, BLOCKS = 64, 100, 3000, 300
CONTEXTS = (100, 1000, 8000, 30000)


def fetch(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"content-type": "application/json"})
    return urllib.request.urlopen(request, timeout=120).read().decode()


def served(backends, *flags):
    return Server(GOSSAMER, MODEL, PORT, "--served-model-name", "m", "--backend-dir", backends, "--no-enable-prefix-caching", *FLAGS, *flags)


def random_tokens(count):
    return [generator.randrange(ORDINARY) for _ in range(count)]


def ask(prompt, tokens, logprobs):
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": logprobs}
    return json.loads(fetch("/v1/completions", body | {"return_token_ids": True}))


def drawn(answer):
    return answer["choices"][0]["token_ids"]


def pre_emptions():
    lines = fetch("/metrics").splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if "num_preemptions_total" in line and line[0] != "#"))


def at_once(prompts):
    answers = [None] * len(prompts)

    def one(i):
        answers[i] = ask(prompts[i], TOKENS, 2)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def asynchronous(backends, what):
    prompts = [random_tokens(generator.randrange(10, LONGEST)) for _ in range(PROMPTS)]
    answers, again = [], 0
    for flags in ([], ["--no-async-scheduling"]):
        with served(backends, "--num-gpu-blocks-override", str(BLOCKS), *flags):
            answers.append(at_once(prompts))
            count = pre_emptions()
            again += count
            print(f"{what}, {' '.join(flags) or 'asynchronous'}: {count} pre-emptions")
    same, gaps, wrong = 0, [], 0
    for first, second in zip(*answers):
        wrong += any(len(drawn(answer)) != TOKENS or answer["usage"]["completion_tokens"] != TOKENS for answer in (first, second))
        part = next((i for i, (a, b) in enumerate(zip(drawn(first), drawn(second))) if a != b), None)
        if part is None:
            same += 1
        else:
            top = sorted(first["choices"][0]["logprobs"]["top_logprobs"][part].values(), reverse=True)
            gaps.append(round(top[0] - top[1], 4))
    if not again:
        FAILURES.append(f"{what}: nothing was pre-empted")
    if backends == PORTABLE and PROMPTS - same > again:
        FAILURES.append(f"{what}: {PROMPTS - same} part, {again} were pre-empted")
    if wrong:
        FAILURES.append(f"{what}: {wrong} answers of a wrong length")
    print(f"{what}: {same} of {PROMPTS} alike, {wrong} of a wrong length; where they part the first two are {sorted(gaps)} apart")


def contexts():
    texts = {n: random_tokens(n) for n in CONTEXTS}

    def next_tokens():
        return {n: ask(text, 4, 5)["choices"][0] for n, text in texts.items()}

    with served(BACKENDS):
        exact = next_tokens()
    with served(BACKENDS, "--kv-cache-dtype", "fp8"):
        seen = []
        for others in ((317, 5000, 77, 12001), (1213, 64, 9000)):
            for n in others:
                ask(random_tokens(n), 3, 1)
            seen.append(next_tokens())
    for n in CONTEXTS:
        first, second, reference = seen[0][n], seen[1][n], exact[n]
        numbers = all(value is not None and value == value for value in first["logprobs"]["token_logprobs"])
        top, others = (choice["logprobs"]["top_logprobs"][0] for choice in (reference, first))
        apart = [abs(others[token] - value) for token, value in top.items() if token in others]
        again = "the same" if first == second else "others"
        if not numbers or first != second or not apart:
            FAILURES.append(f"E4M3 cache, {n} tokens")
        print(
            f"E4M3 cache, {n} tokens: {'all numbers' if numbers else 'NOT ALL NUMBERS'}, {again} after other requests; of the first token's five "
            f"likeliest {len(apart)} in common with bfloat16, at most {max(apart, default=0):.3f} apart"
        )


if len(sys.argv) < 5:
    sys.exit(__doc__)
GOSSAMER, BACKENDS, PORTABLE, MODEL, *FLAGS = sys.argv[1:]
generator = random.Random(5)
# Control tokens stand at the end of the vocabulary.
ORDINARY = json.loads((pathlib.Path(MODEL) / "config.json").read_text())["vocab_size"] * 99 // 100

asynchronous(PORTABLE, "portable kernels")
asynchronous(BACKENDS, "tuned kernels")
contexts()
sys.exit("FAILED: " + "; ".join(FAILURES) if FAILURES else 0)

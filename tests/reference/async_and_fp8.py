"""usage: case.py GOSSAMER BACKENDS MODEL OUT: cases 17 and 42 against servers of MODEL."""
import json, subprocess, sys, time, urllib.request, random, threading, os, signal
exe, backends, model, out = sys.argv[1:5]
PORT = 8199
def start(*flags):
    log = open(f"{out}/case-server.log", "a")
    p = subprocess.Popen([exe, "serve", model, "--served-model-name", "m", "--backend-dir", backends, "--port", str(PORT), "--max-model-len", "32768", *os.environ.get("FLAGS", "").split(), *flags], stdout=log, stderr=log)
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2); return p
        except Exception: time.sleep(0.1)
        if p.poll() is not None: sys.exit(f"server ended {p.returncode} {flags}")
    sys.exit("not ready")
def stop(p): p.send_signal(signal.SIGTERM); p.wait(30)
def ask(prompt, n, top):
    body = {"model": "m", "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": top, "return_token_ids": True}
    r = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    a = json.loads(urllib.request.urlopen(r, timeout=120).read()); return a
def metric(name):
    t = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read().decode()
    return sum(float(l.rsplit(" ", 1)[1]) for l in t.splitlines() if name in l and not l.startswith("#"))
r = random.Random(5); vocab = int(os.environ.get("VOCAB", "199000")); longest = int(os.environ.get("LONGEST", "6000"))
prompts = [[r.randrange(vocab) for _ in range(r.randrange(10, longest))] for _ in range(64)]
def all_at_once(width):
    got = [None] * len(prompts); it = iter(range(len(prompts))); lock = threading.Lock()
    def work():
        while True:
            with lock: i = next(it, None)
            if i is None: return
            got[i] = ask(prompts[i], 48, 2)
    ts = [threading.Thread(target=work) for _ in range(width)]; [t.start() for t in ts]; [t.join() for t in ts]
    return got
def tokens_of(a): return a["choices"][0]["token_ids"]
runs = {}
blocks = os.environ.get("BLOCKS", "1500")
for name, flags in (("async", []), ("sync", ["--no-async-scheduling"])):
    p = start("--num-gpu-blocks-override", blocks, "--no-enable-prefix-caching", *flags)
    runs[name] = all_at_once(64)
    print(name, "preemptions", metric("num_preemptions_total"))
    if name == "sync": runs["one"] = all_at_once(1)
    stop(p)
for other in ("sync", "one"):
    same, gaps, short = 0, [], 0
    for a, b in zip(runs["async"], runs[other]):
        ta, tb = tokens_of(a), tokens_of(b)
        if len(ta) != 48 or len(tb) != 48 or a["usage"]["completion_tokens"] != 48: short += 1
        d = next((i for i, (x, y) in enumerate(zip(ta, tb)) if x != y), None)
        if d is None: same += 1
        else:
            top = sorted(a["choices"][0]["logprobs"]["top_logprobs"][d].values(), reverse=True)
            gaps.append(round(top[0] - top[1], 5) if len(top) > 1 else 9.9)
    print(f"case 17: async at 64 against {other}: {same} of 64 the same, {short} of a wrong length, top-2 gaps where they part: {sorted(gaps)}")
# case 42
lens = [n for n in (100, 1000, 8000, 30000) if n < longest * 6]
texts = {n: [r.randrange(vocab) for _ in range(n)] for n in lens}
def tops():
    res = {}
    for n in lens:
        a = ask(texts[n], 4, 5); l = a["choices"][0]["logprobs"]; res[n] = (tokens_of(a), l["token_logprobs"], l["top_logprobs"])
    return res
p = start(); base = tops(); stop(p)
p = start("--kv-cache-dtype", "fp8")
for n in (317, 5000, 77, 12001): ask([r.randrange(vocab) for _ in range(min(n, longest * 2))], 3, 1)
first, again = tops(), None
for n in (1213, 64, 9000): ask([r.randrange(vocab) for _ in range(min(n, longest * 2))], 3, 1)
again = tops(); stop(p)
for n in lens:
    b, f = base[n], first[n]
    finite = all(x == x and x > -1e9 for x in f[1])
    common = [abs(f[2][0][k] - v) for k, v in b[2][0].items() if k in f[2][0]]
    print(f"case 42: {n} tokens: finite {finite}, the same again after others {f == again[n]}, first tokens {b[0]} {f[0]}, largest difference of the {len(common)} common of top 5 log-probabilities {max(common, default=-1):.4f}")

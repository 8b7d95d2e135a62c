#!/usr/bin/env python3
"""The rows of README's table: serves a checkpoint, sends each row with `gossamer bench serve`, keeps what came out as JSON.

    tests/reference/serve_rows.py GOSSAMER MODEL_DIR SHAREGPT_FILE OUT.json [--only TEXT] [--flags "FLAG..."]

SHAREGPT_FILE: conversations in ShareGPT's format, of which 1000 are sent. --only: rows whose name has TEXT. --flags: the server's,
in place of those below. Rows go one after the other to one server, those with E4M3 experts and the greedy one to servers of their own, which
find the first one's kernel cache. OUT is written after each row, so that a run that is cut short keeps the others. Everything stays on
loopback. Exits with 1 where a row's client fails or leaves a request out.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

from server import Server

PORT = 8198
FLAGS = "--max-model-len 33000 --max-num-seqs 1024"
SHAREGPT = "--dataset-name sharegpt --dataset-path {sharegpt} --num-prompts "


def random_row(prompts, tokens_in, tokens_out):
    return f"--dataset-name random --random-input-len {tokens_in} --random-output-len {tokens_out} --num-prompts {prompts}"


# What each server's flags add, and its rows: name and the client's arguments.
SERVERS = [
    ("", [
        ("200 in, 2 out, one by one after the start", random_row(60, 200, 2) + " --max-concurrency 1"),
        ("ShareGPT-like, concurrency 1", SHAREGPT + "50 --max-concurrency 1"),
        ("ShareGPT-like, concurrency 4", SHAREGPT + "100 --max-concurrency 4"),
        ("ShareGPT-like, all at once", SHAREGPT + "1000"),
        ("1024 in, 1024 out, concurrency 64", random_row(128, 1024, 1024) + " --max-concurrency 64"),
        ("128 in, 4 out, all at once", random_row(1000, 128, 4)),
        ("2000 in, 100 out, all at once", random_row(500, 2000, 100)),
        ("32,000 in, 100 out, all at once", random_row(40, 32000, 100)),
        ("4000 in, 200 out, all at once", random_row(500, 4000, 200)),
    ]),
    ("--moe-activation-dtype fp8", [
        ("128 in, 4 out, all at once, E4M3 experts", random_row(1000, 128, 4)),
        ("2000 in, 100 out, all at once, E4M3 experts", random_row(500, 2000, 100)),
    ]),
    ("", [("ShareGPT-like, concurrency 1, greedy", SHAREGPT + "50 --max-concurrency 1 --temperature 0")]),
]
KEPT = ["completed", "failed", "duration", "total_input_tokens", "total_output_tokens", "request_throughput", "output_throughput",
        "total_token_throughput", "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms"]


def measure(gossamer, url, arguments, folder):
    """One row; None where its client failed."""
    client = [gossamer, "bench", "serve", "--base-url", url, "--ignore-eos", "--disable-progress", "--save-result",
              "--result-dir", folder, "--result-filename", "row.json", *arguments]
    done = subprocess.run(client, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return json.loads((pathlib.Path(folder) / "row.json").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gossamer")
    parser.add_argument("model")
    parser.add_argument("sharegpt")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--flags", default=FLAGS)
    given = parser.parse_args()
    result = {"date": str(datetime.date.today()), "server": f"gossamer serve MODEL_DIR {given.flags}", "seconds_to_ready": [], "rows": []}
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        base = [*given.flags.split(), "--kernel-cache-dir", f"{folder}/kernels"]
        for more, rows in SERVERS:
            rows = [row for row in rows if given.only in row[0]]
            if not rows:
                continue
            with Server(given.gossamer, given.model, PORT, *base, *more.split()) as server:
                result["seconds_to_ready"].append({"flags": more, "seconds": round(server.seconds, 1)})
                print(f"ready after {server.seconds:.1f} s {more}", flush=True)
                for name, arguments in rows:
                    arguments = arguments.format(sharegpt=given.sharegpt).split()
                    row = measure(given.gossamer, server.url, arguments, folder)
                    if row is None or row["failed"] or row["completed"] != int(arguments[arguments.index("--num-prompts") + 1]):
                        print(f"FAIL {name}: {row and {key: row[key] for key in ('completed', 'failed')}}", flush=True)
                        failed = True
                    if row is None:
                        continue
                    kept = {key: round(row[key], 3) if isinstance(row[key], float) else row[key] for key in KEPT if key in row}
                    client = "gossamer bench serve --ignore-eos " + " ".join(arguments).replace(given.sharegpt, "SHAREGPT_FILE")
                    result["rows"].append({"case": name, "client": client, "server_flags": more, **kept})
                    if "one by one" in name:
                        result["rows"][-1]["ttft_s"] = row.get("ttfts")
                    given.out.write_text(json.dumps(result, indent=1))
                    print(f"{name}: TPOT {row['mean_tpot_ms']:.3f} ms, TTFT {row['mean_ttft_ms']:.1f} ms, {row['output_throughput']:.0f} output and "
                          f"{row['total_token_throughput']:.0f} total tokens/s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

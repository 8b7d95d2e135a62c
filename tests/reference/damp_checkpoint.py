#!/usr/bin/env python3
"""Divides what attention and experts add to the residual stream by eight, in a checkpoint's own files.

Layers of random weights amplify rounding: after 36 of them two correct implementations choose different tokens, and comparing them says
nothing. Damped like this, every product, scale and page is as large as before and the next token is decided by more than rounding.

usage: damp_checkpoint.py CHECKPOINT_DIR       then tests/reference/same_tokens.py
"""
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

HALVINGS = 3
DAMPED = ("self_attn.o_proj.weight", "self_attn.o_proj.bias", "mlp.experts.down_proj_bias", "mlp.experts.down_proj_scales")


def damp_bf16(words):
    exponents = words >> 7 & 0xFF
    words[:] = numpy.where(exponents > HALVINGS, words - (HALVINGS << 7), words & 0x8000)


def damp_e8m0(scales):
    scales[:] = numpy.where(scales > HALVINGS, scales - HALVINGS, 0)


def damp(path):
    with open(path, "rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
    data = numpy.memmap(path, numpy.uint8, "r+", offset=8 + header_bytes)
    found = 0
    for name, tensor in header.items():
        if not name.endswith(DAMPED):
            continue
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] == "BF16":
            damp_bf16(data[begin:end].view(numpy.uint16))
        elif tensor["dtype"] == "U8":
            damp_e8m0(data[begin:end])
        else:
            sys.exit(f"{path}: {name} is {tensor['dtype']}, expected BF16 or U8")
        found += 1
    return found


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*.safetensors"))
    with ThreadPoolExecutor(8) as pool:
        count = sum(pool.map(damp, files))
    if count == 0:
        sys.exit(f"{sys.argv[1]}: expected tensors named {', '.join(DAMPED)} in *.safetensors, found none")
    print(f"damped {count} tensors in {len(files)} files")

#!/usr/bin/env python3
"""A table of when the blocks of a decode layer's kernels start, pass their marks and end, out of what `layer_clock` wrote.

    kernels/profile/layer.py FILE

Times are microseconds since the layer before ended: of the first block, the median one and the last one, each the median over layers.
What the marks stand for is said in the kernels: `waited` is the wait for the grid before, others have the names of `clock.mark`.
"""
import bisect
import statistics
import sys

ORDER = ["qkv", "rope", "attention", "o", "router", "experts"]
NAMES = {
    "qkv": ["multiplied", "exchanged"],
    "o": ["multiplied", "exchanged"],
    "attention": ["walked"],
    "experts": ["routed", "requested", "placed", "gate_up done", "block done", "all done", "activations placed", "down done"],
}
AROUND = 1 << 32  # nanoseconds after which the clock's low word comes round


def read(path):
    lines = [line.rstrip("\n").split("\t") for line in open(path)]
    if not lines or lines[0][0] != "layers":
        sys.exit(f"{path}: expected a file of layer_clock, which begins with the number of layers")
    blocks, begin = {}, int(lines[1][1]) - AROUND // 2
    for name, *words in lines[1:]:
        # Never passed: 0.
        blocks.setdefault(name, []).append([(int(word) - begin) % AROUND if int(word) else None for word in words])
    return int(lines[0][1]), blocks


def experts_by_layer(rows, layers):
    """The experts have the same blocks in every layer, and wait until all of the layer before have ended."""
    if len(rows) % layers:
        sys.exit(f"expected the experts' same blocks in each of {layers} layers, got {len(rows)} blocks")
    rows.sort(key=lambda row: row[2])
    each = len(rows) // layers
    return [rows[at : at + each] for at in range(0, len(rows), each)]


def by_layer(rows, ends):
    """Other kernels' blocks belong to the layer between whose ends their wait was over; layers may have different numbers of them."""
    layers = [[] for _ in ends]
    for row in rows:
        layers[min(bisect.bisect_left(ends, row[2]), len(ends) - 1)].append(row)
    return layers


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    layers, blocks = read(sys.argv[1])
    experts = experts_by_layer(blocks.pop("experts"), layers)
    ends = [max(row[-1] for row in layer) for layer in experts]
    kernels = {name: by_layer(rows, ends) for name, rows in blocks.items()} | {"experts": experts}
    print(f"{'':28}{'first':>8}{'median':>8}{'last':>8}")
    for name in [name for name in ORDER if name in kernels]:
        count = len(kernels[name][-1][0])
        labels = ["started", "", "waited"] + NAMES.get(name, [])
        labels += [""] * (count - 1 - len(labels)) + ["ended"]
        for at, label in enumerate(labels):
            seen = []
            for layer in range(1, layers):
                times = [(row[at] - ends[layer - 1]) / 1000 for row in kernels[name][layer] if row[at] is not None]
                if times:
                    seen.append((min(times), statistics.median(times), max(times)))
            if label and seen:
                print(f"{name + ' ' + label:28}" + "".join(f"{statistics.median(column):8.2f}" for column in zip(*seen)))
    print(f"a layer: {statistics.median(b - a for a, b in zip(ends, ends[1:])) / 1000:.2f} us")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Estimates of a step on many nodes, from message sizes and measured compute. Nothing here was run on such a cluster.

    docs/cluster_estimate.py [LINES.jsonl] [--batch-rows 2048] [--latency-us 50] [--gbits 25] [--node-speed 1]
                             [--nodes 8,16,32,64,128,256] [--units 256]

LINES.jsonl is what `cargo bench --bench cluster` wrote with ANEMONE_BENCH_JSON; without it the figures of an earlier
run are taken (`MEASURED`). The model is an HMM over the 50,257 words of GPT-2 on WikiText-2, 128 words per row.

A step of a rank is

    rows/nodes · c + u + m,

c: seconds of flows per row, u: seconds of the update, which every rank makes alike, both measured; m: messages,

    gathers    2·⌈log₂ nodes⌉·latency + nodes·6.4 kB/bandwidth            who has which words, and reports
    exchange   latency + (nodes−1)·overhead + received/bandwidth          partial sums, each slice to its owner
    spread     (nodes−1)·latency + received/bandwidth                     finished slices, around a ring

of which two nodes need no spread. Received are the rows of words that a rank's own share of the batch has (exchange)
and that the whole batch has (spread), with the weights that are no table. How many words so many rows have was counted.
"""

import argparse
import json
import math

WORDS = 50257
# Distinct words in so many rows of 128 words of WikiText-2 (training part, mean of eight places).
DISTINCT = {1: 82, 2: 132, 4: 214, 8: 366, 16: 628, 32: 1068, 64: 1844, 128: 3074, 256: 4911, 512: 7778,
            1024: 11360, 2048: 15767, 4096: 20484, 8192: 24464}
# Seconds of a message at the sender, besides its latency.
OVERHEAD = 2e-6
# Figures of an earlier run of the bench, where no file is given.
MEASURED = [
    {"rows": 512, "ranks": 2, "step_seconds": 0.1855, "compute_seconds": 0.1603, "sum_seconds": 0.0109},
]


def distinct(rows):
    """Distinct words, between counted points by a power of the number of rows; beyond the last, its slope."""
    points = sorted(DISTINCT)
    upper = next((p for p in points[1:] if p >= rows), points[-1])
    lower = points[points.index(upper) - 1]
    slope = math.log(DISTINCT[upper] / DISTINCT[lower]) / math.log(upper / lower)
    return min(WORDS, DISTINCT[lower] * (rows / lower) ** slope)


def received(rows, nodes, units):
    """Bytes that a rank receives in a step: exchange, spread."""
    dense = units * units + units
    own = (distinct(max(1, rows / nodes)) * units + dense) * 4
    whole = (distinct(rows) * units + dense) * 4
    if nodes == 2:
        return own, 0.0
    return (nodes - 1) * own / nodes, (nodes - 1) * whole / nodes


def messages(rows, nodes, units, latency, bandwidth):
    """Seconds of a step's messages."""
    exchange, spread = received(rows, nodes, units)
    told = nodes * 6400
    seconds = 2 * math.ceil(math.log2(nodes)) * latency + told / bandwidth
    seconds += latency + (nodes - 1) * OVERHEAD + exchange / bandwidth
    if nodes > 2:
        seconds += (nodes - 1) * latency + spread / bandwidth
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", nargs="?")
    parser.add_argument("--batch-rows", type=int, default=2048, help="rows of a global batch")
    parser.add_argument("--latency-us", type=float, default=50, help="microseconds until a message arrives")
    parser.add_argument("--gbits", type=float, default=25, help="bandwidth of a node, both ways at once")
    parser.add_argument("--node-speed", type=float, default=1, help="how many of the measured ranks a node is worth")
    parser.add_argument("--nodes", default="1,2,8,16,32,64,128,256")
    parser.add_argument("--units", type=int, default=256)
    options = parser.parse_args()
    lines = MEASURED
    if options.lines:
        with open(options.lines) as file:
            lines = [json.loads(line) for line in file if line.strip()]
    if not lines:
        parser.error(f"{options.lines}: no measured line in it")
    line = min(lines, key=lambda line: abs(math.log(line["rows"] / options.batch_rows)))
    per_row = line["compute_seconds"] / (line["rows"] / line["ranks"]) / options.node_speed
    update = (line["step_seconds"] - line["compute_seconds"] - line["sum_seconds"]) / options.node_speed
    latency, bandwidth = options.latency_us * 1e-6, options.gbits * 1e9 / 8
    rows = options.batch_rows
    network = f"{options.latency_us:g} µs, {options.gbits:g} Gbit/s"
    print(f"ESTIMATE, not measured: global batches of {rows} rows, {network},")
    print(f"{per_row * 1e3:.3f} ms of flows per row and {update * 1e3:.1f} ms of update on a node\n")
    print("| nodes | flows, ms | update, ms | messages, ms | received, MB | rows/s | of ideal |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for nodes in (int(word) for word in options.nodes.split(",")):
        flows = rows / nodes * per_row
        sent = 0.0 if nodes == 1 else messages(rows, nodes, options.units, latency, bandwidth)
        volume = 0.0 if nodes == 1 else sum(received(rows, nodes, options.units))
        step = flows + update + sent
        alone = rows * per_row + update
        print(f"| {nodes} | {flows * 1e3:.1f} | {update * 1e3:.1f} | {sent * 1e3:.1f} | {volume / 1e6:.1f} "
              f"| {rows / step:,.0f} | {alone / nodes / step:.2f} |")


if __name__ == "__main__":
    main()

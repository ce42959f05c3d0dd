"""A stream of digits whose shades are turned over in its midst, and what a fresh run and held-out rows are to be.

    python3 digits.py $ANEMONE_DATA/mnist OUT SEED [PASSES]

Writes OUT/shifted.npy (two passes over the digits as they are, then PASSES, 20 if not said, over those turned over),
OUT/fresh.npy (twenty of the latter alone, in another order) and OUT/held-out.npy (turned over): 14×14 pixels in 8
shades, a row each, every pass in an order of its own. Needs NumPy, Pillow and PyArrow.
"""
import io, pathlib, sys

import numpy, PIL.Image, pyarrow.parquet

source, out, seed = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
after = int(sys.argv[4]) if len(sys.argv) > 4 else 20
rng = numpy.random.default_rng(seed)

def digits(pattern):
    rows = []
    for path in sorted(source.glob(pattern)):
        for cell in pyarrow.parquet.read_table(path, columns=["image"])["image"].to_pylist():
            image = PIL.Image.open(io.BytesIO(cell["bytes"] if isinstance(cell, dict) else cell)).convert("L")
            grey = numpy.asarray(image, dtype=numpy.float32).reshape(14, 2, 14, 2).mean(axis=(1, 3))
            rows.append((grey.ravel() / 32).astype(numpy.uint8).clip(0, 7))
    return numpy.stack(rows)

def passes(rows, count):
    return numpy.concatenate([rows[rng.permutation(len(rows))] for _ in range(count)])

train, held_out = digits("train-*.parquet"), digits("valid.parquet")
out.mkdir(parents=True, exist_ok=True)
numpy.save(out / "shifted.npy", numpy.concatenate([passes(train, 2), passes(7 - train, after)]))
numpy.save(out / "fresh.npy", passes(7 - train, 20))
numpy.save(out / "held-out.npy", 7 - held_out)

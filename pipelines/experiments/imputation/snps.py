"""Imputation of SNPs: hidden cells of test rows, filled by our models and by what else is used for it.

    ANEMONE_DATA=… python3 pipelines/experiments/imputation/snps.py [OUT [SET …]]

One command runs all of it and prints two tables in Markdown; rows and models go to OUT (target/imputation if not
said). Needs Python 3.11, NumPy and PyArrow, and `target/release/anemone` or the program that ANEMONE names.

Two sets: snps805, whose sites are far apart, and snps1167_chr6, one gene. 30 % of the cells of the test rows (and, to
choose options of the baselines, of the validation rows) are hidden at random, by three seeds, which are also those of
the models. Who is asked gives p(category) of every hidden cell:

- our models: `anemone train PIPELINE`, `anemone marginals`, and `anemone impute --by mean`, whose dosages must be the
  means of these probabilities. The parameters are those after the last epoch and those of the best validation epoch;
- the frequency of each category at the site, one pseudo-count;
- the k nearest training rows by Hamming distance on the known sites, with the site's frequencies as pseudo-counts;
- the Chow-Liu tree of the training rows (one pseudo-count), exact posteriors by belief propagation;
- Li and Stephens' hidden Markov model of haplotypes, the one behind the programs of genetics: the hidden state is the
  training row that is copied. It is one haplotype a row, so it wants rows that are haplotypes.

Options are chosen by log-loss on validation rows. The last two are compared with brute force, every time this runs.
"""
import itertools, os, pathlib, shutil, subprocess, sys, time

import numpy as np, pyarrow, pyarrow.parquet

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = pathlib.Path(os.environ["ANEMONE_DATA"]).resolve()
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/imputation").resolve()
ANEMONE = os.environ.get("ANEMONE", str(ROOT / "target/release/anemone"))
SETS = sys.argv[2:] or ["snps805", "snps1167_chr6"]
MODELS = ["hclt", "pdhclt"]
SEEDS = [1, 2, 3]
HIDDEN = 0.3


# Rows.

def rows_of(folder, pattern):
    tables = [pyarrow.parquet.read_table(path, columns=["snps"]) for path in sorted(folder.glob(pattern))]
    lists = pyarrow.concat_tables(tables)["snps"].combine_chunks()
    return lists.flatten().to_numpy().astype(np.int64).reshape(len(lists), -1)


def write_with_holes(path, rows, hidden):
    """One list a row, hidden cells null."""
    cells = pyarrow.array(rows.ravel().astype(np.uint8), mask=hidden.ravel())
    lists = pyarrow.FixedSizeListArray.from_arrays(cells, rows.shape[1])
    pyarrow.parquet.write_table(pyarrow.table({"snps": lists}), path)


# The plain Chow-Liu tree.

def chow_liu(rows, cats):
    """(order, parent, p(x_v | x_parent), [var, parent cat, cat]) of the tree of most mutual information. One
    pseudo-count for each pair of variables, spread evenly over its cats² cells."""
    num_rows, num_vars = rows.shape
    one_hot = (rows[:, :, None] == np.arange(cats)).astype(np.float32).reshape(num_rows, -1)
    pairs = (one_hot.T @ one_hot).astype(np.float64).reshape(num_vars, cats, num_vars, cats).transpose(0, 2, 1, 3)
    pairs = (pairs + 1 / cats**2) / (num_rows + 1)
    single = (one_hot.sum(0).astype(np.float64).reshape(num_vars, cats) + 1 / cats) / (num_rows + 1)
    information = (pairs * np.log(pairs / (single[:, None, :, None] * single[None, :, None, :]))).sum((2, 3))
    # Prim, from variable 0.
    order, parent = [0], np.full(num_vars, -1)
    best, near = information[0].copy(), np.zeros(num_vars, dtype=int)
    best[0] = -np.inf
    while len(order) < num_vars:
        new = int(best.argmax())
        order.append(new)
        parent[new] = near[new]
        closer = (information[new] > best) & ~np.isin(np.arange(num_vars), order)
        best[closer], near[closer], best[new] = information[new][closer], new, -np.inf
    tables = np.stack([pairs[parent[v], v] / single[parent[v]][:, None] if v else
                       np.tile(single[0], (cats, 1)) for v in range(num_vars)])
    return order, parent, tables


def tree_posteriors(tree, rows, hidden, cats):
    """p(x_v | known cells), [row, var, cat], and log p(known cells), [row]. Messages are scaled to a sum of one."""
    order, parent, tables = tree
    evidence = (hidden[:, :, None] | (rows[:, :, None] == np.arange(cats))).astype(np.float64)
    up, message, log_known = evidence.copy(), np.empty_like(evidence), np.zeros(len(rows))
    for v in reversed(order):
        scale = up[:, v].sum(1)
        up[:, v] /= scale[:, None]
        log_known += np.log(scale)
        message[:, v] = up[:, v] @ tables[v].T  # Σ_c p(c | parent's cat) · up[c]
        if parent[v] >= 0:
            up[:, parent[v]] *= message[:, v]
        else:
            log_known += np.log(message[:, v, 0])
    posterior = np.empty_like(evidence)
    for v in order:
        if parent[v] >= 0:
            # What the parent's posterior is without this branch, times p(· | parent).
            posterior[:, v] = up[:, v] * ((posterior[:, parent[v]] / message[:, v]) @ tables[v])
        else:
            posterior[:, v] = up[:, v] * tables[v][0]
        posterior[:, v] /= posterior[:, v].sum(1, keepdims=True)
    return posterior, log_known


def test_tree(rng):
    cats, num_vars = 3, 6
    base = rng.integers(0, cats, (200, num_vars))
    base[:, 1:] = np.where(rng.random((200, num_vars - 1)) < 0.6, base[:, :-1], base[:, 1:])
    tree = chow_liu(base, cats)
    worlds = np.array(list(itertools.product(range(cats), repeat=num_vars)))
    joint = np.ones(len(worlds))
    for v, (parent, table) in enumerate(zip(tree[1], tree[2])):
        joint *= table[worlds[:, parent] if parent >= 0 else 0, worlds[:, v]]
    assert abs(joint.sum() - 1) < 1e-12
    rows, hidden = rng.integers(0, cats, (20, num_vars)), rng.random((20, num_vars)) < 0.5
    found, log_known = tree_posteriors(tree, rows, hidden, cats)
    for row, holes, posterior, log in zip(rows, hidden, found, log_known):
        weights = joint * ((worlds == row) | holes).all(1)
        assert abs(np.log(weights.sum()) - log) < 1e-9
        for v in range(num_vars):
            exact = np.bincount(worlds[:, v], weights, cats) / weights.sum()
            assert np.abs(posterior[v] - exact).max() < 1e-9


# Frequencies, and nearest neighbours.

def frequencies(train, cats):
    return ((train[:, :, None] == np.arange(cats)).sum(0) + 1 / cats) / (len(train) + 1)


def distances(train, rows, hidden, cats):
    """Share of known sites that differ, [row, training row]."""
    known = ~hidden
    same = sum((((rows == c) & known).astype(np.float32) @ (train == c).T.astype(np.float32)) for c in range(cats))
    return 1 - same / known.sum(1, keepdims=True)


def neighbour_posteriors(train, distance, cats, prior, k, sharpness, pseudo):
    near = np.argpartition(distance, k - 1, axis=1)[:, :k]
    d = np.take_along_axis(distance, near, 1)
    nearest = distance.min(1, keepdims=True)
    # `sharpness` s: exp(−s·d).
    weight = 1 / (d + 1e-3) if sharpness == "1/d" else np.exp(-sharpness * (d - nearest))
    weight *= k / weight.sum(1, keepdims=True)  # as many as k, so that a pseudo-count means the same in all of them
    dense = np.zeros_like(distance)
    np.put_along_axis(dense, near, weight.astype(np.float32), 1)
    counts = np.stack([dense @ (train == c).astype(np.float32) for c in range(cats)], axis=2).astype(np.float64)
    return (counts + pseudo * prior) / (k + pseudo)


NEIGHBOURS = [dict(k=k, sharpness=sharpness, pseudo=pseudo) for k in (2, 5, 20, 80, 160, 320, 640, 1280)
              for sharpness in (0, "1/d", 25, 50, 100, 200, 400, 800) for pseudo in (0.03, 0.1, 0.3, 1, 4, 16, 32)]


# Li and Stephens' model.

def copying_posteriors(train, rows, hidden, cats, prior, switch, error, at_once=40):
    """p(x_v | known cells) of a chain that copies training rows: between sites another one is taken, evenly among all,
    with probability `switch`, and a cell is drawn from the site's frequencies with probability `error`."""
    num_rows, num_vars = rows.shape
    num_train = len(train)
    posterior = np.empty((num_rows, num_vars, cats))
    for begin in range(0, num_rows, at_once):
        some, holes = rows[begin:begin + at_once], hidden[begin:begin + at_once]

        def emission(v):
            p = np.float32(error) * prior[v][some[:, v]][:, None].astype(np.float32)
            p = p + np.float32(1 - error) * (train[:, v] == some[:, v, None])
            p[holes[:, v]] = 1
            return p

        ahead = np.empty((num_vars, len(some), num_train), dtype=np.float32)  # before the cell at v is seen
        state = np.full((len(some), num_train), 1 / num_train, dtype=np.float32)
        for v in range(num_vars):
            ahead[v] = state
            state = state * emission(v)
            state /= state.sum(1, keepdims=True)
            state *= np.float32(1 - switch)
            state += np.float32(switch / num_train)
        back = np.ones((len(some), num_train), dtype=np.float32)
        for v in reversed(range(num_vars)):
            weight = ahead[v] * back
            copied = np.stack([weight @ (train[:, v] == c).astype(np.float32) for c in range(cats)], 1)
            copied = copied / copied.sum(1, keepdims=True)
            posterior[begin:begin + at_once, v] = (1 - error) * copied + error * prior[v]
            back *= emission(v)
            back /= back.mean(1, keepdims=True)
            back *= np.float32(1 - switch)
            back += np.float32(switch)
    return posterior


def test_copying(rng):
    cats, num_vars, switch, error = 3, 4, 0.2, 0.1
    train, rows = rng.integers(0, cats, (3, num_vars)), rng.integers(0, cats, (5, num_vars))
    hidden, prior = rng.random((5, num_vars)) < 0.5, frequencies(train, cats)
    found = copying_posteriors(train, rows, hidden, cats, prior, switch, error, at_once=2)
    for row, holes, posterior in zip(rows, hidden, found):
        exact = np.zeros((num_vars, cats))
        for path in itertools.product(range(3), repeat=num_vars):
            p = np.prod([switch / 3 + (1 - switch) * (a == b) for a, b in itertools.pairwise(path)]) / 3
            copied = train[path, range(num_vars)]
            cell = (1 - error) * (copied[:, None] == np.arange(cats)) + error * prior
            p *= np.prod([cell[v, row[v]] for v in range(num_vars) if not holes[v]])
            exact += p * cell
        exact /= exact.sum(1, keepdims=True)
        assert np.abs(posterior - exact)[holes].max(initial=0) < 1e-5


COPYING = [dict(switch=switch, error=error) for switch in (0.001, 0.003, 0.01, 0.03, 0.1, 0.2)
           for error in (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3)]


# Ours, through the command.

def anemone(*words):
    done = subprocess.run([ANEMONE, *map(str, words)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")


def our_posteriors(data, model, seed, holes, hidden, cats):
    """p(category) of hidden cells, [cell, cat], after the last epoch and of the best validation epoch."""
    run = OUT / f"{data}-{model}-{seed}"
    shutil.rmtree(run, ignore_errors=True)  # a run of another time
    anemone("train", f"pipelines/snps-{model}.toml", "--out", run, "--set", f"circuit.seed={seed}",
            "--set", f"batch.seed={seed}", "--set", f'source.files="${{ANEMONE_DATA}}/{data}/train-*.parquet"',
            "--set", f'validate.files="${{ANEMONE_DATA}}/{data}/valid.parquet"')
    for which in ([], ["--best"]):
        table, whole = OUT / "posteriors.parquet", OUT / "whole.parquet"
        anemone("marginals", run, "--data", holes, "--out", table, *which)
        anemone("impute", run, "--data", holes, "--out", whole, "--by", "mean", *which)
        p = pyarrow.parquet.read_table(table)["p_snps"].combine_chunks()
        cells = p.flatten()  # null where a cell is known
        assert (np.asarray(cells.is_valid()) == hidden.ravel()).all()
        posterior = np.array(cells.drop_null().flatten()).reshape(-1, cats).astype(np.float64)
        dosage = pyarrow.parquet.read_table(whole)["dosage_snps"].combine_chunks().flatten()
        dosage = np.asarray(dosage.to_numpy(zero_copy_only=False))[hidden.ravel()]
        assert np.abs(dosage - posterior @ np.arange(cats)).max() < 1e-4
        yield posterior


# Measures.

def log_loss(posterior, truth):
    return float(-np.log(posterior[np.arange(len(truth)), truth]).mean())


def measures(posterior, truth, sites):
    """Of hidden cells: r² over all, the mean over sites of r² within a site, mean −log p(truth)."""
    dosage = posterior @ np.arange(posterior.shape[1])
    within = []
    for site in range(sites.max() + 1):
        d, t = dosage[sites == site], truth[sites == site]
        if t.var() > 0:
            within.append(np.corrcoef(d, t)[0, 1] ** 2 if d.std() > 1e-9 else 0.0)
    return np.corrcoef(dosage, truth)[0, 1] ** 2, float(np.mean(within)), log_loss(posterior, truth)


def study(data):
    train, valid, test = (rows_of(DATA / data, name) for name in ("train-*.parquet", "valid.parquet", "test.parquet"))
    cats, begun = int(train.max()) + 1, time.time()
    prior, tree, found = frequencies(train, cats), chow_liu(train, cats), {}
    whole = tree_posteriors(tree, test, np.zeros_like(test, dtype=bool), cats)[1].mean()
    print(f"{data}: Chow-Liu tree: log p of whole test rows {whole:.3f}", file=sys.stderr)

    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        hidden, hidden_valid = rng.random(test.shape) < HIDDEN, rng.random(valid.shape) < HIDDEN
        truth, truth_valid, sites = test[hidden], valid[hidden_valid], np.nonzero(hidden)[1]
        holes = OUT / "holes.parquet"
        write_with_holes(holes, test, hidden)

        def note(name, posterior):
            assert np.abs(posterior.sum(1) - 1).max() < 1e-4
            found.setdefault(name, []).append(measures(posterior, truth, sites))
            r2, within, loss = found[name][-1]
            seconds = time.time() - begun
            print(f"seed {seed}, {seconds:.0f} s: {name}: {r2:.4f} {within:.4f} {loss:.4f}", file=sys.stderr)

        def best_of(name, choices, loss):
            chosen = min(choices, key=loss)
            print(f"seed {seed}: {name}: {chosen}", file=sys.stderr)
            return chosen

        note("frequency of the site", np.broadcast_to(prior, test.shape + (cats,))[hidden])
        note("Chow-Liu tree", tree_posteriors(tree, test, hidden, cats)[0][hidden])

        d_valid, d_test = (distances(train, rows, h, cats) for rows, h in ((valid, hidden_valid), (test, hidden)))
        chosen = best_of("nearest rows", [options for options in NEIGHBOURS if options["k"] <= len(train)], lambda o:
                         log_loss(neighbour_posteriors(train, d_valid, cats, prior, **o)[hidden_valid], truth_valid))
        note("nearest training rows", neighbour_posteriors(train, d_test, cats, prior, **chosen)[hidden])

        # A hundred validation rows are enough for two options.
        some = slice(None, None, max(1, len(valid) // 100))
        few, holes_of_few = valid[some], hidden_valid[some]
        chosen = best_of("Li and Stephens", COPYING, lambda o: log_loss(
            copying_posteriors(train, few, holes_of_few, cats, prior, **o)[holes_of_few], few[holes_of_few]))
        note("Li and Stephens' HMM", copying_posteriors(train, test, hidden, cats, prior, **chosen)[hidden])

        for model in MODELS:
            last, best = our_posteriors(data, model, seed, holes, hidden, cats)
            note(f"`snps-{model}.toml`", last)
            note(f"`snps-{model}.toml`, `--best`", best)

    print(f"\n| {data} | r², all hidden cells | r² within a site, mean | log-loss, nats per cell |")
    print("|---|---:|---:|---:|")
    for name, values in sorted(found.items(), key=lambda item: np.mean(item[1], axis=0)[2]):
        mean, deviation = np.mean(values, axis=0), np.std(values, axis=0, ddof=1)
        print(f"| {name} | " + " | ".join(f"{m:.4f} ± {s:.4f}" for m, s in zip(mean, deviation)) + " |", flush=True)


test_tree(np.random.default_rng(0))
test_copying(np.random.default_rng(0))
OUT.mkdir(parents=True, exist_ok=True)
for data in SETS:
    study(data)

"""Mixed tables: hidden cells filled and planted rows found, by a hidden Chow-Liu tree and by what else is used for it.

    python3 pipelines/experiments/imputation/tables.py [OUT]

One command runs all of it and prints two tables in Markdown; rows and models go to OUT (target/tables if not said).
Needs Python 3.11, NumPy, PyArrow and scikit-learn, and `target/release/anemone` or the program that ANEMONE names.

Sets: `customers`, made here with a known truth (four kinds of customer decide eight columns: names, counts, numbers, a
truth and a date, some of which do not matter), and scikit-learn's bundled iris, wine, breast cancer and diabetes (no
download), with the class as a column of names where there is one. Ten seeds shuffle rows, split them (70 : 30), hide
20 % of the cells of the test rows, and seed models. Everything is learned from whole training rows.

Imputation, over hidden cells: the share of names and truths that are wrong, and the root mean square error of numbers
and dates in standard deviations of their columns. Contenders:

- our models: `anemone train --table`, 16 states, some 650 updates with batches of 128 (32 where rows are fewer than a
  thousand), nothing else said; then `anemone impute` by mean;
- the mean of a column, or its most frequent name;
- the nearest training rows: 15, by the distance over known cells, numbers in standard deviations, names as 0 or 1.
- on `customers`, the truth: the exact posterior under the distribution that made the rows.

Anomalies: one test row in ten gets three cells of other rows, each from a row of its own, so that every cell alone is
usual. Scores are -log p of a row, scikit-learn's isolation forest (its defaults; names one-hot) and the distance to the
nearest rows; the measure is the area under the ROC curve.
"""
import os, pathlib, shutil, subprocess, sys

import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from sklearn import datasets
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score

ROOT = pathlib.Path(__file__).resolve().parents[3]
OUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/tables").resolve()
ANEMONE = os.environ.get("ANEMONE", str(ROOT / "target/release/anemone"))
SEEDS = range(1, 11)
UPDATES = 656  # 20 epochs of the largest set
HIDDEN, PLANTED, SWAPPED, NEIGHBOURS = 0.2, 0.1, 3, 15
DAY0 = np.datetime64("2020-01-01")

# A table is a dict of columns; names and truths are arrays of str or bool, everything else is numbers.


# The truth of `customers`: p(kind) and, given the kind, independent columns.
KINDS = np.array([0.4, 0.3, 0.2, 0.1])
COUNTRIES = ["DE", "FR", "IT", "ES", "PT"]
P_COUNTRY = np.array([[.7, .1, .1, .05, .05], [.1, .7, .1, .05, .05], [.1, .1, .1, .6, .1], [.2, .2, .2, .2, .2]])
AGE = np.array([28, 40, 55, 67]), np.array([4, 5, 6, 5])
INCOME = np.array([7.5, 8.1, 8.6, 8.0]), np.array([.2, .2, .25, .3])  # of its logarithm
VISITS = np.array([2, 25, 9, 40])  # mean of a Poisson distribution
P_MEMBER = np.array([.1, .5, .95, .8])
JOINED = np.array([1600, 1100, 500, 100]), np.array([60, 80, 60, 40])  # days


def customers(rng, rows=6000):
    z = rng.choice(4, rows, p=KINDS)
    normal = lambda moments: rng.normal(moments[0][z], moments[1][z])
    return {
        "country": np.array(COUNTRIES)[[rng.choice(5, p=P_COUNTRY[k]) for k in z]],
        "age": np.round(normal(AGE)),
        "income": np.exp(normal(INCOME)),
        "visits": rng.poisson(VISITS[z]).astype(float),
        "member": rng.random(rows) < P_MEMBER[z],
        "joined": np.round(normal(JOINED)),
        "weight": rng.normal(70, 12, rows),
        "colour": np.array(["red", "green", "blue"])[rng.integers(0, 3, rows)],
    }


def truth_posterior(table, hidden):
    """p(kind | known cells), [row, kind]."""
    gauss = lambda x, moments: -0.5 * ((x[:, None] - moments[0]) / moments[1]) ** 2 - np.log(moments[1])
    log = np.tile(np.log(KINDS), (len(table["age"]), 1))
    parts = {
        "country": np.log(P_COUNTRY.T)[[COUNTRIES.index(c) for c in table["country"]]],
        "age": gauss(table["age"], AGE),
        "income": gauss(np.log(table["income"]), INCOME),
        "visits": table["visits"][:, None] * np.log(VISITS) - VISITS,
        "member": np.log(np.where(table["member"][:, None], P_MEMBER, 1 - P_MEMBER)),
        "joined": gauss(table["joined"], JOINED),
    }
    for name, part in parts.items():
        log += np.where(hidden[name][:, None], 0, part)
    p = np.exp(log - log.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def fill_by_truth(train, table, hidden):
    p = truth_posterior(table, hidden)
    mean_income = np.exp(INCOME[0] + INCOME[1] ** 2 / 2)
    return {
        "country": np.array(COUNTRIES)[(p @ P_COUNTRY).argmax(1)],
        "age": p @ AGE[0], "income": p @ mean_income, "visits": p @ VISITS,
        "member": p @ P_MEMBER >= 0.5, "joined": p @ JOINED[0],
        "weight": np.full(len(p), 70.0), "colour": np.full(len(p), "red"),
    }


def bundled(load, classes):
    bunch = load()
    table = {name.replace(" ", "_"): bunch.data[:, at].astype(float) for at, name in enumerate(bunch.feature_names)}
    if classes:
        table["class"] = np.array([str(name) for name in bunch.target_names])[bunch.target]
    else:
        table["target"] = bunch.target.astype(float)
    return table


SETS = {
    "customers": customers,
    "iris": lambda rng: bundled(datasets.load_iris, True),
    "wine": lambda rng: bundled(datasets.load_wine, True),
    "breast cancer": lambda rng: bundled(datasets.load_breast_cancer, True),
    "diabetes": lambda rng: bundled(datasets.load_diabetes, False),
}


def is_number(column):
    return column.dtype.kind == "f"


def take(table, rows):
    return {name: column[rows] for name, column in table.items()}


def write(path, table, hidden=None):
    columns = {}
    for name, column in table.items():
        mask = None if hidden is None else hidden[name]
        if name == "joined":
            column = DAY0 + column.astype("timedelta64[D]")
        elif name in ("age", "visits"):
            column = column.astype(int)
        columns[name] = pa.array(column, mask=mask)
    pq.write_table(pa.table(columns), path)


def read(path, like):
    found = pq.read_table(path)
    table = {}
    for name, column in like.items():
        values = found[name].to_numpy(zero_copy_only=False)
        if name == "joined":
            values = (values.astype("datetime64[D]") - DAY0).astype(float)
        table[name] = values.astype(float) if is_number(column) else values.astype(column.dtype)
    return table, found


# Contenders: (training table, table, hidden) to a filled table.

def fill_by_columns(train, table, hidden):
    filled = {}
    for name, column in train.items():
        values, counts = np.unique(column, return_counts=True)
        filled[name] = np.full(len(table[name]), column.mean() if is_number(column) else values[counts.argmax()])
    return filled


def scaled(train, table):
    """Columns as numbers whose differences compare: [row, column], and which of them are names."""
    parts = []
    for name, column in train.items():
        if is_number(column):
            parts.append(((table[name] - column.mean()) / (column.std() or 1), False))
        else:
            names = {value: at for at, value in enumerate(np.unique(column))}
            parts.append((np.array([names.get(value, -1) for value in table[name]], dtype=float), True))
    return np.stack([part for part, _ in parts], 1), np.array([name for _, name in parts])


def distances(train, table, hidden):
    (a, names), (b, _) = scaled(train, table), scaled(train, train)
    known = ~np.stack([hidden[name] for name in train], 1)
    total = np.zeros((len(a), len(b)))
    for at, is_name in enumerate(names):
        differ = a[:, at, None] != b[None, :, at] if is_name else (a[:, at, None] - b[None, :, at]) ** 2
        total += known[:, at, None] * differ
    return total / known.sum(1).clip(1)[:, None]


def fill_by_neighbours(train, table, hidden):
    near = np.argsort(distances(train, table, hidden), axis=1, kind="stable")[:, :NEIGHBOURS]
    filled = {}
    for name, column in train.items():
        if is_number(column):
            filled[name] = column[near].mean(1)
        else:
            most = lambda row: max(np.unique(row), key=lambda value: (row == value).sum())
            filled[name] = np.array([most(row) for row in column[near]])
    return filled


def run(*words):
    done = subprocess.run([ANEMONE, *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}: {done.stderr}")


def errors(table, filled, hidden, train):
    """(share of wrong names, root mean square error of numbers in standard deviations), over hidden cells."""
    wrong, squares = [], []
    for name, column in table.items():
        cells = hidden[name]
        if is_number(column):
            squares.append(((filled[name][cells] - column[cells]) / (train[name].std() or 1)) ** 2)
        else:
            wrong.append(filled[name][cells] != column[cells])
    return (np.concatenate(wrong).mean() if wrong else np.nan), np.sqrt(np.concatenate(squares).mean())


def one_hot(train, table):
    cells, names = scaled(train, table)
    parts = [np.eye(len(np.unique(train[name])) + 1)[cells[:, at].astype(int)] if is_name else cells[:, at:at + 1]
             for at, (name, is_name) in enumerate(zip(train, names))]
    return np.concatenate(parts, 1)


def main():
    filled_rows, found_rows = {}, {}
    for set_name, make in SETS.items():
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            folder = OUT / f"{set_name.replace(' ', '-')}-{seed}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            table = make(rng)
            order = rng.permutation(len(next(iter(table.values()))))
            cut = len(order) * 7 // 10
            train, test = take(table, order[:cut]), take(table, order[cut:])
            hidden = {name: rng.random(len(order) - cut) < HIDDEN for name in table}
            write(folder / "train.parquet", train)
            write(folder / "holes.parquet", test, hidden)
            batch = 32 if cut < 1000 else 128
            run("train", "--data", folder / "train.parquet", "--table", "--latents", 16, "--batch-rows", batch,
                "--epochs", -(-UPDATES // -(-cut // batch)), "--set", f"circuit.seed={seed}",
                "--set", f"batch.seed={seed}", "--quiet", "--out", folder / "run")
            run("impute", folder / "run", "--data", folder / "holes.parquet", "--out", folder / "filled.parquet",
                "--by", "mean")
            ours, _ = read(folder / "filled.parquet", table)
            contenders = {"`anemone impute --by mean`": ours}
            contenders["nearest training rows"] = fill_by_neighbours(train, test, hidden)
            contenders["mean or mode of the column"] = fill_by_columns(train, test, hidden)
            if set_name == "customers":
                contenders["*the truth*"] = fill_by_truth(train, test, hidden)
            for name, filled in contenders.items():
                filled_rows.setdefault((set_name, name), []).append(errors(test, filled, hidden, train))

            # Planted rows.
            planted = rng.random(len(order) - cut) < PLANTED
            odd = {name: column.copy() for name, column in test.items()}
            for row in np.flatnonzero(planted):
                for name in rng.choice(list(table), SWAPPED, replace=False):
                    odd[name][row] = train[name][rng.integers(cut)]
            write(folder / "odd.parquet", odd)
            run("score", folder / "run", "--data", folder / "odd.parquet", "--out", folder / "scored.parquet")
            scores = -pq.read_table(folder / "scored.parquet")["log_likelihood"].to_numpy()
            forest = IsolationForest(random_state=seed).fit(one_hot(train, train))
            nowhere = {name: np.zeros(len(planted), bool) for name in table}
            near = np.sort(distances(train, odd, nowhere), axis=1)[:, :NEIGHBOURS].mean(1)
            for name, score in [("`anemone score`", scores), ("nearest training rows", near),
                                ("isolation forest", -forest.score_samples(one_hot(train, odd)))]:
                found_rows.setdefault((set_name, name), []).append(roc_auc_score(planted, score))

    shown = lambda values: "–" if np.isnan(values).any() else f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
    print("| set | filled by | names wrong | numbers, rmse in deviations |\n|---|---|---:|---:|")
    for (set_name, name), rows in filled_rows.items():
        print(f"| {set_name} | {name} | {shown([r[0] for r in rows])} | {shown([r[1] for r in rows])} |")
    print("\n| set | scored by | area under the ROC curve |\n|---|---|---:|")
    for (set_name, name), rows in found_rows.items():
        print(f"| {set_name} | {name} | {shown(rows)} |")


if __name__ == "__main__":
    main()

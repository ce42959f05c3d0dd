"""Ten texts drawn under constraints, each checked, beside two that are not constrained; printed as Markdown.

    ANEMONE_DATA=… target/release/anemone train pipelines/wikitext-hmm.toml --out runs/wikitext-ends \\
        --set decode.end_of_text=true
    python3 pipelines/experiments/constraints/text.py runs/wikitext-ends

Needs Python 3.11 and `target/release/anemone` or the program that ANEMONE names. The n-th command has --seed n and
--rows 20, and its first row is shown; all twenty must satisfy the constraint, by definitions without automata.
"""
import json, os, re, shlex, subprocess, sys, tempfile, textwrap

RUN = sys.argv[1]
ANEMONE = os.environ.get("ANEMONE", "target/release/anemone")
END = 50256  # GPT-2's end-of-text


def has(*words, inside=False):
    """Words one after the other, none of them inside a longer one."""
    edge = "" if inside else r"(?<![0-9A-Za-z_]){}(?![0-9A-Za-z_])"
    return lambda text, *_: re.search(".*".join(edge.format(re.escape(w)) if edge else re.escape(w) for w in words),
                                      text, re.DOTALL)


def begins(prefix):
    return lambda text, *_: text.startswith(prefix)


def is_a(expression):
    return lambda text, *_: re.fullmatch(expression, text)


def long(least, most):
    return lambda _, length, ended: least <= length <= most


def ends(_text, _length, ended):
    return ended


# Flags, and what must hold of (text, tokens before its end, whether it ends).
CASES = [
    ('--length 32 --prefix " In the" --contains "war, the army"', [begins(" In the"), has("war", "the army")]),
    ('--length 32 --contains "the river, north" --any-order', [has("the river"), has("north")]),
    ('--length 40 --contains "king, queen, castle" --any-order', [has("king"), has("queen"), has("castle")]),
    ('--length 32 --contains "graph, ology" --inside-words', [has("graph", "ology", inside=True)]),
    (r'--length 32 --matches " The [A-Z][a-z]+ (is|was) .*\."', [is_a(r" The [A-Z][a-z]+ (is|was) .*\.")]),
    (r'--length 24 --matches " In (19|20)\d\d , .* (won|lost) [^0-9]*"',
     [is_a(r" In (19|20)\d\d , .* (won|lost) [^0-9]*")]),
    ('--prefix " The" --ends --min-length 10 --max-length 20', [begins(" The"), ends, long(10, 20)]),
    (r'--contains "album, released" --matches " .*\. \n" --ends --max-length 28',
     [has("album", "released"), is_a(r" .*\. \n"), ends, long(0, 28)]),
    (r'--prefix " The city" --contains "miles, of the" --matches "[^0-9\n]*" --length 32',
     [begins(" The city"), has("miles", "of the"), is_a(r"[^0-9\n]*")]),
    (r'--prefix " The game" --contains "players, season" --any-order --matches "[^<>]* \. \n" --ends --max-length 28',
     [begins(" The game"), has("players"), has("season"), is_a(r"[^<>]* \. \n"), ends, long(0, 28)]),
]


def sample(flags, seed):
    """(text up to its end, tokens before it, whether it ends) of twenty rows, and what is said about them."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "rows.jsonl")
        words = [ANEMONE, "sample", RUN, *shlex.split(flags), "--rows", "20", "--out", out]
        words += ["--seed", str(seed)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{flags}: {done.stderr}")
        with open(out, encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
    for row in rows:
        ids = row["values"]
        length = ids.index(END) if END in ids else len(ids)
        yield row["text"].split("<|endoftext|>")[0], length, END in ids, done.stderr


def shown(text):
    return text.replace("\\", "\\\\").replace("<", "\\<").replace("\n", "⏎").replace("*", "\\*").replace("|", "\\|")


def item(head, text):
    print(f"- {head}")
    print(textwrap.fill(text, 118, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


for text, *_ in list(sample("", 1))[:2]:
    item("no constraint, where it begins:", f"“{shown(text[:140].rsplit(' ', 1)[0])} …”")
for seed, (flags, laws) in enumerate(CASES, start=1):
    rows = list(sample(flags, seed))
    for text, length, ended, _ in rows:
        for at, law in enumerate(laws):
            assert law(text, length, ended), (flags, at, text, length, ended)
    text, length, ended, said = rows[0]
    log_p = re.search(r"log p\(constraint \| prefix\) = (\S+) nats", said)[1].replace("-", "−")
    tail = f"; ends after {length} tokens" if ended else ""
    item(f"`{flags}`", f"“{shown(text)}” (log p {log_p}{tail})")
print(f"\n{20 * len(CASES)} rows were drawn, and all satisfy their constraints.")

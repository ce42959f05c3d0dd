"""A stream of tokens whose distribution changes: WikiText-2 under vocabularies that are permuted anew.

    python3 texts.py $ANEMONE_DATA/wikitext2/train.bin OUT.bin SEED

The 1,023 most frequent tokens keep a category each, all others share one. Four parts of 1,200,000 tokens: the text, the
same tokens with categories permuted, the text backwards, another permutation. Rows of 32 tokens are shuffled within a
part, so that nothing but the part decides their distribution.
"""
import array, collections, random, sys

source, out, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
tokens = array.array("H", open(source, "rb").read())
ranks = {t: i for i, (t, _) in enumerate(collections.Counter(tokens).most_common(1023))}
text = [ranks.get(t, 1023) for t in tokens]
half = 1_200_000
rng = random.Random(seed)

def permuted(part):
    order = list(range(1024))
    rng.shuffle(order)
    return [order[t] for t in part]

def shuffled(part):
    rows = [part[at : at + 32] for at in range(0, len(part), 32)]
    rng.shuffle(rows)
    return [t for row in rows for t in row]

a, b = text[:half], text[half : 2 * half]
stream = shuffled(a) + shuffled(permuted(b)) + shuffled(a[::-1]) + shuffled(permuted(b))
array.array("H", stream).tofile(open(out, "wb"))

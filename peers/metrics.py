#!/usr/bin/env python3
"""Generates golden values of BLEU and ROUGE-L, and compares `muffle score` with the Python packages.

    python3 peers/metrics.py
    python3 peers/metrics.py --compare HYPOTHESES REFERENCES [--muffle PROGRAM]

Needs sacrebleu, rouge-score and its nltk; if they are missing, it creates peers/.venv-metrics and
restarts there.

Without arguments it writes to crates/text/tests/golden:
* metrics.json  `items`: each with its tokens by sacrebleu's 13a, sentence BLEU under each of
                `options`, and ROUGE-L [precision, recall, F1] with and without stemmer. `corpora`:
                some of the items, with a limited number of references each, and their corpus scores;
                ROUGE-L is the mean over the items.
* stems.json    words and their stems by nltk's PorterStemmer.
All sentences and words are synthetic.

With --compare it scores two files: one hypothesis per line, and the references of the same item per
line, separated by tabs. Lines end with \\n or \\r\\n. Blank references are ignored; an item without
others has one empty reference. Ours is the output of
`muffle score --hypotheses F --references F --json`: `bleu` with sacrebleu's defaults, and `rouge_l`,
a hundred times the mean F1 with stemmer. `cargo build --release` builds the program first, unless
--muffle names one. Exit status 1 if either differs by more than 1e-6.
"""

import argparse
import importlib.metadata
import itertools
import json
import logging
import pathlib
import random
import subprocess
import sys

import _venv

_venv.ensure({"sacrebleu": "sacrebleu==2.6.0", "rouge_score": "rouge-score==0.1.2", "nltk": "nltk==3.10.4"}, "metrics")

from nltk.stem.porter import PorterStemmer
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "crates/text/tests/golden"
TOLERANCE = 1e-6
STEMS = 2000

# smoothing, its value, effective order
OPTIONS = [(*smoothing, effective) for effective in (False, True) for smoothing in [
    ("exp", None), ("floor", None), ("floor", 0.01), ("add-k", None), ("add-k", 0.5), ("none", None)]]

# ---- The items: a hypothesis and its references ---------------------------------------------------------------------

PLAIN = [
    ("The Copper Kettle is a cheap coffee shop near the old bridge.",
     ["The Copper Kettle is a cheap coffee shop close to the old bridge.",
      "Near the old bridge there is a cheap coffee shop called The Copper Kettle."]),
    ("Marlow's serves Italian food by the river.",
     ["Marlow's serves Italian food by the river.", "By the river, Marlow's offers Italian dishes."]),
    ("The Green Door is a family-friendly pub with a high rating.",
     ["The Green Door is a highly rated, family-friendly pub.", "Families are welcome at The Green Door, a pub rated highly.",
      "A pub with high ratings, The Green Door is child friendly."]),
    ("Prices at Tandoor Corner range from £20 to £25.",
     ["Tandoor Corner has a price range of £20-25.", "At Tandoor Corner, prices are between £20 and £25 a head."]),
    ("There is a restaurant in the city centre.",
     ["Lotus is a Chinese restaurant in the city centre with an average customer rating of 3 out of 5."]),
    ("Lotus, in the city centre, is a Chinese restaurant with average ratings and it is not suited to children at all.",
     ["Lotus is a Chinese restaurant."]),
    ("Bay Leaf has a customer rating of 5 out of 5 and costs less than £20.",
     ["Bay Leaf costs less than £20 and has a customer rating of 5 out of 5.", "Rated 5 out of 5, Bay Leaf is cheap.",
      "Bay Leaf: 5/5, under £20.", "With 5 out of 5 stars, Bay Leaf costs less than £20."]),
    ("The Mill is located near The Ferry. It serves fast food. It is not family friendly.",
     ["The Mill, located near The Ferry, serves fast food and is not family-friendly.",
      "Not a family friendly place, The Mill serves fast food near The Ferry."]),
    ("Families enjoyed the restaurants' excellent servings; they returned happily.",
     ["The family enjoys an excellent serving at the restaurant and happily returns."]),
    ("Sakura is a moderately priced Japanese restaurant located in the riverside area near Café Lumière.",
     ["Sakura is a moderately priced Japanese restaurant in riverside, near Café Lumière.",
      "Near Café Lumière in the riverside area is Sakura, which serves Japanese food at moderate prices."]),
    ("Sakura serves Japanese food.", ["Sakura serves Japanese food.", "Sakura serves Japanese food."]),
    ("A cosy place called Ember provides French food for more than £30.",
     ["Ember provides French food for more than £30 in a cosy place.", "Ember is cosy, French and over £30."]),
]

SHORT = [
    ("Yes", ["Yes"]),
    ("Yes", ["No"]),
    ("Coffee shop", ["A coffee shop", "Coffee shop"]),
    ("A cheap pub", ["A cheap pub"]),
    ("A cheap pub", ["cheap", "A very cheap riverside pub"]),
    ("pub cheap a", ["a cheap pub"]),
    (".", ["."]),
]

NASTY = [
    ("", ["A pub."]),
    ("", [""]),
    ("A pub.", [""]),
    ("A pub near the river.", ["", "A pub near the river."]),  # the empty one is not the closest
    ("pub", ["", "A pub near the river with a view"]),  # the empty one is
    ("   \t ", ["   ", "a"]),
    ("one two three four five", ["six seven eight nine ten"]),  # nothing matches
    ("one two three four five", ["five one"]),  # single words match
    ("one two three four five six", ["one two x three four y five six"]),  # pairs match
    ("the the the the the the the", ["the cat is on the mat", "there is a cat on the mat"]),
    ("very very very good good", ["very good", "very very good food", "good good good"]),
    ("a b c d", ["a b c d e f", "a b"]),  # a tie: the shorter
    ("a b c d", ["a b", "a b c d e f", "a b c d e f"]),
    ("It costs 1,000.50 or 1.000,50; not .5, 5. or 5,", ["It costs 1,000.50, or 1.000,50 - not .5 , 5. or 5,"]),
    ("v1.2.3, 3.14.15 and 10,000,000.00", ["v1.2.3 3.14.15 10,000,000.00", "v 1.2.3, 3.14.15"]),
    ("10-20, A-1, 1-A, -5, 5- and 3--4", ["10 - 20, A-1, 1 -A, -5, 5 - and 3 - - 4"]),
    ("state-of-the-art well-known x-ray e-mail", ["state of the art well known xray email", "state-of-the-art x-ray"]),
    ("Wait... what?! No,,, really.,.,.", ["Wait . . . what ? ! No , , , really . , . , .", "Wait… what?!"]),
    ("(brackets) [square] {curly} <angle> /slash\\ |bar| ~tilde` ^caret_ =eq+ *star @at #hash $5 %6 &",
     ["( brackets ) [ square ] { curly } < angle > / slash \\ | bar | ~ tilde ` ^ caret _ = eq + * star @ at # hash $ 5 % 6 &"]),
    ("don't can't it's o'clock 'quoted' rock'n'roll", ["do n't can't it's oclock 'quoted' rock 'n' roll"]),
    ("&quot;Fish &amp; Chips&quot; &lt;b&gt;", ["\"Fish & Chips\" <b>"]),
    ("&amp;quot; &amp;lt; &amp;amp; &nbsp; &#39; &QUOT;", ["&quot; < & &nbsp; ' \"", "& quot ; &lt; &amp;"]),
    ("“Curly” ‘quotes’ — dashes – and « guillemets »…", ["\"Curly\" 'quotes' - dashes - and << guillemets >>..."]),
    ("Café Naïve über Øresund façade Ångström ǅ ß ﬁne",
     ["Cafe Naive uber Oresund facade Angstrom dz ss fine", "café naïve ÜBER øresund"]),
    ("Cafe\u0301 na\u0131ve \u0130stanbul \u212aelvin 5\u212a \u2160\u2161 \u00b2\u0663",
     ["Café naıve istanbul kelvin 5k iii 23"]),
    ("Great food 🍣🍜 5⭐ 👨‍👩‍👧 👍🏽!", ["Great food 🍣🍜 5⭐ 👨‍👩‍👧 👍🏽 !", "great food"]),
    ("这家餐厅很好。价格便宜，服务不错！", ["这家餐厅很好。价格便宜，服务不错！", "这家餐厅不好。"]),
    ("すしは おいしい です。 3,000円", ["すしは おいしい です。 3,000 円"]),
    ("مطعم رخيص، قرب النهر.", ["مطعم رخيص ، قرب النهر ."]),
    ("tab\tseparated\tand \u00a0 no-break\u2003em\u3000ideographic\u200bzero\u2028line",
     ["tab separated and no-break em ideographic zero line"]),
    ("unit\u001fseparator record\u001eseparator\u001d\u001c next\u0085line\u000bfeed\u000c",
     ["unit separator record separator next line feed"]),
    ("hyphen-\nated line\nbreak-\n", ["hyphenated line break-"]),
    ("crlf-\r\nended line\r\n", ["crlf- ended line", "crlf-\nended line"]),
    ("a <skipped> b <skip<skipped>ped> c", ["a b <skipped> c"]),
    ("x" * 3000, ["x" * 3000, "x" * 2999]),
    ("yyyyyyyy syzygying eeing ssss 1990s 2000ed 5ing aaaa", ["yyyyyyyi syzygy eeing ssss 1990 2000 5ing aaa"]),
    ("word " * 200, ["word " * 150 + "end"]),
    ("THE GOLDEN PALACE IS VERY CHEAP.", ["The Golden Palace is very cheap.", "THE GOLDEN PALACE IS CHEAP."]),
    ("The news: skies, dying innings, exceeding outings; proceed, succeed.",
     ["news sky die inning exceed outing proceeds succeeded"]),
    ("generalization generalizations generally generalize general", ["general generalized generally generalizing generals"]),
    ("A pub .", ["A pub."]),
    ("a b c d", ["a b", "a b c d e f g h"]),  # the same F1 by other ways: the first counts
    ("a b c d", ["a b c d e f g h", "a b"]),
    ("null\u0000byte \ufeffmark \ufffd \u007f", ["null byte mark", "null\u0000byte \ufeffmark"]),
]

ITEMS = PLAIN + SHORT + NASTY

# ---- Words ----------------------------------------------------------------------------------------------------------

# Porter's own examples, nltk's exceptions, and what sits at the edges of the rules.
WORDS = """
caresses ponies ties caress cats flies dies lies pies skies feed agreed plastered bled motoring sing conflated troubled
sized hopping tanned falling hissing fizzed failing filing happy sky enjoy enjoyment relational conditional rational
valency hesitancy digitizer conformably radically differently vilely analogously vietnamization predication operator
feudalism decisiveness hopefulness callousness formality sensitivity sensibility triplicate formative formalize
electricity electrical hopeful goodness revival allowance inference airliner gyroscopic adjustable defensible irritant
replacement adjustment dependent adoption homologou communism activate angularity homologous effective bowdlerize
probate rate cease control controll roll died tied lied spied tried cried dying lying tying news inning innings outing
outings canning cannings howe proceed exceed succeed proceeds exceeded succeeding exceedingly geology archaeology
theology philologist logi apology fully carefully beautifully awfully ally rally formally finally really totally
possibly probably ably nobly terribly relationally nationally conditionally rationally traditionally by bys dys bying my
fly try say play buy guy toy syzygy ivy orrery trouble oats trees private
oaten tree y yy yyy yyyy yay eye bee seed need speed freed indeed being seeing eing aing ing ed ied ieds ies ss s sss
us is as was has this gas bus bias abacus census thus plus yes does goes shoes foxes boxes kisses buzzes quizzes
ate ating ated bling bled sibling izing size sizes seized seizing add added adding egg egged ebbing odd off inn err
all ill tell telling told controlling rolled falling billed buzzing fizzing missing kissing puffing stuffed
i a an at be do go he if in it me no of on or so to up we 1 22 333 4th 1990s 2000ed 5ing x1ing 7ies 8ied a1b2c3
ion tion ation ations nation nations station motion emotion action actions option religion million opinion union
ement ment ent cement element moment comment payment movement agent parent talent event absent
ive ize ous ism iti ate able ible ance ence ant al er ic ou able table cable capable edible bible dance fence
restaurant restaurants customer customers rating ratings rated families family friendly cheaply pricing prices priced
located locations serving serves served moderately riverside children childrens cuisine coffee dishes dining average
""".split()
BASES = """
abil act adapt agr allow anal appl argu assum authent autom bak beaut believ bott brav brok bubbl bus cann car chang char
clos coll commun comp conflat cont cook creat cri cry cycl dar decid deliv demand di differ digit div eas ed electr
emp end enjoy equ ess ey fail fall feast fill fish fizz flavour flow fluff fly form free fulf gas gener geo glob grad
grill gyr hand happ hat hav heal hiss hom hop hurri idol imag inn instruct journ judg juic kitch know lat lay leg liv
loc log lov lux lyr mak mann mash mat mod mov myst nat necess nibbl not obey oil operat opt organ own oxid past pay perc
play pleas pol pract pric qual quest rad rat real recip reg rel revis riv roast roll sal sat sav sell sens serv siz smok
snack soci spic spr stat sty sugar syl syst tabl tast tel theo tidy toll trad triplic troubl try typ un us util vac
valu var vi vill vot wax wed whey whisk wit wow xylo yell yolk yummy zest zon 3d 90 b2b
""".split()
SUFFIXES = """
s es ies ss sses ied ed eed ing y ly ally ely ently ously bly ably fully ational tional ency ancy izer ization ation
ator alism iveness fulness ousness ality ivity bility ability logy logi logist icate ative alize icity ical ful ness
al ance ence er ers ic able ible ant ement ment ent ion tion sion ou ism ate ates ated ating ity iti ous ive ize izes
ized izing e ee ll lling lled tt tting bled zzing w x ys yed ying eds ings alli bli eli
""".split()


def words():
    """WORDS, filled up to STEMS words with a sample of synthetic ones."""
    made = sorted({base + suffix for base in BASES for suffix in SUFFIXES} - set(WORDS))
    written = list(dict.fromkeys(WORDS))
    return sorted(written + random.Random(1).sample(made, STEMS - len(written)))


# ---- The packages ---------------------------------------------------------------------------------------------------


def metric(smoothing="exp", value=None, effective=False):
    return BLEU(smooth_method=smoothing, smooth_value=value, effective_order=effective)


def streams(references):
    """Transposes lists of references for sacrebleu: the first of all, the second of all, … or None."""
    return list(itertools.zip_longest(*references))


def bleu(found):
    return {"score": found.score, "precisions": found.precisions, "brevity_penalty": found.bp,
            "hypothesis_length": found.sys_len, "reference_length": found.ref_len}


SCORERS = {"stemmed": RougeScorer(["rougeL"], use_stemmer=True), "plain": RougeScorer(["rougeL"], use_stemmer=False)}


def rouge(words, hypothesis, references):
    """[precision, recall, F1]"""
    return list(map(float, SCORERS[words].score_multi(references, hypothesis)["rougeL"]))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows)]


# ---- The golden values ----------------------------------------------------------------------------------------------


def item(hypothesis, references):
    return {
        "hypothesis": hypothesis, "references": references,
        "tokens": metric()._preprocess_segment(hypothesis).split(),
        "sentence": [metric(*options).sentence_score(hypothesis, references).score for options in OPTIONS],
        **{words: rouge(words, hypothesis, references) for words in SCORERS},
    }


def corpus(name, places, most=None):
    hypotheses = [ITEMS[i][0] for i in places]
    references = [ITEMS[i][1][:most] for i in places]
    return {
        "name": name, "items": list(places), "most_references": most,
        "bleu": [bleu(metric(*options).corpus_score(hypotheses, streams(references))) for options in OPTIONS],
        **{words: mean([rouge(words, *pair) for pair in zip(hypotheses, references)]) for words in SCORERS},
    }


def corpora():
    end = len(ITEMS)
    short, nasty = len(PLAIN), len(PLAIN) + len(SHORT)
    yield corpus("all", range(end))
    yield corpus("all, one reference", range(end), 1)
    yield corpus("all, at most two references", range(end), 2)
    yield corpus("plain", range(short))
    yield corpus("plain, one reference", range(short), 1)
    yield corpus("short: no 4-gram", range(short, nasty))
    yield corpus("short and one longer", range(short - 1, nasty))
    yield corpus("nasty", range(nasty, end))
    yield corpus("nothing in the hypotheses", range(nasty, nasty + 2))
    yield corpus("nothing at all", [nasty + 1])
    yield corpus("nothing matches", [nasty + 6, nasty + 6])
    yield corpus("single words match", [nasty + 6, nasty + 7])


def write(path, made):
    """Writes one row per line, so that a diff shows the rows that changed."""
    body = []
    for name, value in made.items():
        if name in ("items", "corpora"):
            value = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        elif name == "stems":
            value = "{\n  " + ",\n  ".join(f"{json.dumps(word)}: {json.dumps(stem)}" for word, stem in value.items()) + "\n }"
        else:
            value = json.dumps(value)
        body.append(f" {json.dumps(name)}: {value}")
    text = "{\n" + ",\n".join(body) + "\n}\n"
    json.loads(text)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"{path}: {len(text)} bytes")


def golden():
    versions = {name: importlib.metadata.version(name) for name in ("sacrebleu", "rouge-score", "nltk")}
    made_by = {"made_by": "peers/metrics.py", "versions": versions}
    options = [{"smoothing": smoothing, "value": value, "effective": effective} for smoothing, value, effective in OPTIONS]
    write(OUT / "metrics.json", {
        **made_by, "options": options, "items": [item(*pair) for pair in ITEMS], "corpora": list(corpora())})
    stemmer = PorterStemmer()
    write(OUT / "stems.json", {**made_by, "stems": {word: stemmer.stem(word) for word in words()}})


# ---- The comparison -------------------------------------------------------------------------------------------------


def lines(path):
    text = pathlib.Path(path).read_bytes().decode("utf-8")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def compare(hypotheses_path, references_path, program):
    if program is None:
        subprocess.run(["cargo", "build", "--release"], cwd=ROOT, check=True)
        program = ROOT / "target/release/muffle"
    hypotheses = lines(hypotheses_path)
    references = [[text for text in line.split("\t") if text.strip()] or [""] for line in lines(references_path)]
    if len(hypotheses) != len(references) or not hypotheses:
        sys.exit(f"expected references for {len(hypotheses)} hypotheses, got {len(references)}")
    theirs = {
        "bleu": metric().corpus_score(hypotheses, streams(references)).score,
        "rouge_l": 100 * mean([rouge("stemmed", *pair) for pair in zip(hypotheses, references)])[2],
    }
    command = [str(program), "score", "--hypotheses", hypotheses_path, "--references", references_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nexit code {done.returncode}: {done.stderr}")
    ours = json.loads(done.stdout)
    worst = 0.0
    print(f"{len(hypotheses)} items, {sum(map(len, references))} references")
    print("| | Python | ours | difference |\n|---|---|---|---|")
    for name, value in theirs.items():
        worst = max(worst, abs(ours[name] - value))
        print(f"| {name} | {value:.10f} | {ours[name]:.10f} | {ours[name] - value:+.1e} |")
    sys.exit(0 if worst <= TOLERANCE else 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", nargs=2, metavar=("HYPOTHESES", "REFERENCES"))
    parser.add_argument("--muffle", metavar="PROGRAM")
    options = parser.parse_args()
    # sacrebleu recommends the effective order for sentences; both are needed here.
    logging.getLogger("sacrebleu").setLevel(logging.ERROR)
    if options.compare:
        compare(*options.compare, options.muffle)
    else:
        golden()


if __name__ == "__main__":
    main()

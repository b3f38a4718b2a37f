#!/usr/bin/env python3
"""Loads every kind of model that Muffle writes in `transformers` and `peft`, and compares it.

    python3 peers/outputs.py [MUFFLE]

MUFFLE is the program, target/release/muffle by default. The script trains a few steps of each kind on
small generated data: a new causal model with a trained tokenizer, a pretrained causal model, the same
with low-rank adapters, and a BERT classifier. Then it loads each folder as a user would and checks

- the tokenizer: special tokens inside the vocabulary, texts come back as they were;
- the model: its mean loss per target token or its class probabilities are those of `muffle eval` and
  `muffle predict`;
- the adapter: the original model with it has the logits of the merged model.

Packages go into peers/.venv-outputs.
"""

import _venv

_venv.ensure({"torch": "torch==2.15.0", "transformers": "transformers==5.22.2", "peft": "peft==0.21.2"}, "outputs")

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

ROOT = pathlib.Path(__file__).resolve().parent.parent
MUFFLE = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/release/muffle").resolve()
failures = 0


def check(name, passed, detail=""):
    global failures
    failures += not passed
    print(f"{'ok  ' if passed else 'FAIL'} {name} {detail}", flush=True)


def muffle(*arguments):
    done = subprocess.run([MUFFLE, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode not in (0, 4):
        sys.exit(f"muffle {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def train(place, name, text):
    config = place / f"{name}.toml"
    config.write_text(text + '\n[training]\nsteps = 5\nlot_size = 20\n[privacy]\nepsilon = 8.0\n[evaluation]\nsamples = 0\n')
    out = place / name
    muffle("train", config, "--out", out)
    check(f"{name}: verify", json.loads(muffle("verify", out, "--json"))["consistent"])
    check(f"{name}: model card", "ε" in (out / "model/README.md").read_text())
    return out / "model"


def lines(place):
    """Texts of one line each, for mean losses; and pairs for training."""
    words = ["red", "blue", "kettle", "chair", "mends", "sells", "the", "a", "old", "new"]
    texts = [" ".join(words[(7 * i + 3 * j + i * j) % 10] for j in range(8)) for i in range(60)]
    (place / "lines.txt").write_text("\n".join(texts) + "\n")
    (place / "pairs.txt").write_text("".join(f"{text}||{text[::-1]}\n" for text in texts))
    return texts


def loss_of(model, tokenizer, texts):
    total = count = 0
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            loss = model(ids, labels=ids).loss
        total += loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    return total / count


def check_causal(name, folder, place, texts):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    size = model.config.vocab_size
    check(f"{name}: special tokens", all(id < size for id in tokenizer.all_special_ids), f"{tokenizer.all_special_ids} of {size}")
    check(f"{name}: text comes back", tokenizer.decode(tokenizer(texts[0], add_special_tokens=False).input_ids) == texts[0])
    theirs = loss_of(model, tokenizer, texts)
    ours = json.loads(muffle("eval", folder, "--data", place / "lines.txt", "--format", "lines", "--json"))["nll"]
    check(f"{name}: loss", abs(ours - theirs) < 2e-4, f"{ours:.6f} and {theirs:.6f}")
    prompt = tokenizer(texts[0], return_tensors="pt", add_special_tokens=False)
    made = model.generate(**prompt, max_new_tokens=5)
    check(f"{name}: generate", made.shape[1] > prompt.input_ids.shape[1])


def pretrained(place, texts):
    """A random Llama with the tokenizer of a new model of Muffle, as one would download it."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(place / "new/model/tokenizer.json"), bos_token="<bos>", eos_token="<eos>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(place / "llama")
    tokenizer.save_pretrained(place / "llama")
    return place / "llama"


def classifier(place, texts):
    """A random BERT without pooler."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(place / "new/model/tokenizer.json"), pad_token="<eos>")
    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64)
    BertModel(config, add_pooling_layer=False).save_pretrained(place / "bert")
    tokenizer.save_pretrained(place / "bert")
    rows = "".join(f"{text}\t{'yes' if 'red' in text else 'no'}\n" for text in texts)
    (place / "rows.tsv").write_text("text\tlabel\n" + rows)
    return place / "bert"


with tempfile.TemporaryDirectory() as folder:
    place = pathlib.Path(folder)
    texts = lines(place)
    data = f'[data]\ntrain = "{place / "pairs.txt"}"\nformat = "e2e"\n'

    new = train(place, "new", "")
    check_causal("new", new, place, texts)

    base = pretrained(place, texts)
    check_causal("full", train(place, "full", f'[model]\nsource = "{base}"\n{data}'), place, texts)

    lora = train(place, "lora", f'[model]\nsource = "{base}"\nlora_rank = 4\n{data}')
    check_causal("lora", lora, place, texts)
    merged = AutoModelForCausalLM.from_pretrained(lora)
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), lora / "adapter")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        difference = (merged(ids).logits - adapted(ids).logits).abs().max().item()
        change = (merged(ids).logits - AutoModelForCausalLM.from_pretrained(base)(ids).logits).abs().max().item()
    check("lora: PEFT adapter", difference < 1e-4 < change, f"differs by {difference:.1e}, changes {change:.1e}")

    bert = classifier(place, texts)
    rows = f'[data]\ntrain = "{place / "rows.tsv"}"\nlabels = ["no", "yes"]\n'
    for name, rank in [("bert-full", 0), ("bert-lora", 4)]:
        made = train(place, name, f'[model]\nsource = "{bert}"\nlora_rank = {rank}\n{rows}')
        tokenizer, model = AutoTokenizer.from_pretrained(made), AutoModelForSequenceClassification.from_pretrained(made)
        check(f"{name}: names of classes", model.config.id2label == {0: "no", 1: "yes"}, str(model.config.id2label))
        predicted = json.loads(muffle("predict", made, "--data", place / "rows.tsv", "--json"))["rows"]
        with torch.no_grad():
            theirs = [model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0].tolist() for text in texts]
        ours = [row["probabilities"] for row in predicted]
        ours = [list(row.values()) if isinstance(row, dict) else row for row in ours]
        difference = max(abs(a - b) for x, y in zip(ours, theirs, strict=True) for a, b in zip(x, y, strict=True))
        check(f"{name}: probabilities", difference < 1e-4, f"differ by {difference:.1e}")

sys.exit(failures > 0)

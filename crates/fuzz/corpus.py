"""Makes the seeds: `python3 crates/fuzz/corpus.py`. All of them are made up. Those of snapshots, tables, images and zstd come from `cargo test -p muffle-fuzz --test seeds -- --ignored`."""

import gzip
import hashlib
import json
import struct
import zlib
from pathlib import Path

HERE = Path(__file__).parent / "corpus"
MARK = "QWXZVJKQ"


def put(target, name, content):
    path = HERE / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


# -- weights

SIZE = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "I64": 8}


def safetensors(tensors, dtype="F32", metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, shape in tensors:
        count = 1
        for side in shape:
            count *= side
        number = {"F32": struct.pack("<f", 0.25), "F16": b"\x00\x34", "BF16": b"\x80\x3e", "F64": struct.pack("<d", 0.25), "I64": struct.pack("<q", 1)}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + count * SIZE[dtype]]}
        data += number * count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def linear(name, inputs, outputs):
    return [(f"{name}.weight", [outputs, inputs]), (f"{name}.bias", [outputs])]


def norm(name, width=4):
    return [(f"{name}.weight", [width]), (f"{name}.bias", [width])]


GPT2 = [("wte.weight", [5, 4]), ("wpe.weight", [4, 4])] + norm("h.0.ln_1") + norm("h.0.ln_2") + norm("ln_f")
for part, a, b in [("attn.c_attn", 4, 12), ("attn.c_proj", 4, 4), ("mlp.c_fc", 4, 6), ("mlp.c_proj", 6, 4)]:
    GPT2 += [(f"h.0.{part}.weight", [a, b]), (f"h.0.{part}.bias", [b])]
put("weights", "gpt2", safetensors([(f"transformer.{n}", s) for n, s in GPT2]))
put("weights", "gpt2-bare-f16", safetensors(GPT2 + [("h.0.attn.bias", [1, 1, 4, 4])], "F16", {"format": "pt"}))
put("weights", "gpt2-head", safetensors([(f"transformer.{n}", s) for n, s in GPT2] + [("lm_head.weight", [5, 4])], "BF16"))
LLAMA = [("model.embed_tokens.weight", [5, 4]), ("model.norm.weight", [4])]
for part, shape in [
    ("input_layernorm", [4]), ("post_attention_layernorm", [4]), ("self_attn.q_proj", [4, 4]), ("self_attn.k_proj", [2, 4]), ("self_attn.v_proj", [2, 4]),
    ("self_attn.o_proj", [4, 4]), ("mlp.gate_proj", [6, 4]), ("mlp.up_proj", [6, 4]), ("mlp.down_proj", [4, 6]),
]:
    LLAMA.append((f"model.layers.0.{part}.weight", shape))
put("weights", "llama", safetensors(LLAMA))
BERT = [("bert.embeddings.word_embeddings.weight", [5, 4]), ("bert.embeddings.position_embeddings.weight", [4, 4])]
BERT += [("bert.embeddings.token_type_embeddings.weight", [2, 4])] + norm("bert.embeddings.LayerNorm")
for part, a, b in [("attention.self.query", 4, 4), ("attention.self.key", 4, 4), ("attention.self.value", 4, 4), ("attention.output.dense", 4, 4)]:
    BERT += linear(f"bert.encoder.layer.0.{part}", a, b)
BERT += linear("bert.encoder.layer.0.intermediate.dense", 4, 6) + linear("bert.encoder.layer.0.output.dense", 6, 4)
BERT += norm("bert.encoder.layer.0.attention.output.LayerNorm") + norm("bert.encoder.layer.0.output.LayerNorm") + linear("bert.pooler.dense", 4, 4)
put("weights", "bert", safetensors(BERT))
put("weights", "bert-classifier", safetensors(BERT + linear("classifier", 4, 2), "F16"))
CNN = [("stages.0.conv.weight", [2, 9]), ("stages.0.conv.bias", [2]), ("stages.1.conv.weight", [4, 18]), ("stages.1.conv.bias", [4])]
CNN += norm("stages.0.norm", 2) + norm("stages.1.norm", 4) + linear("head", 4, 3)
put("weights", "cnn", safetensors(CNN, "F64"))
put("weights", "empty", safetensors([]))
put("weights", "scalar", safetensors([("a", []), ("b", [0, 3])], "I64"))
put("weights", "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")

for target in ["index", "hub-index"]:
    put(target, "two.json", json.dumps({"metadata": {"total_size": 16}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}))
    put(target, "one.json", json.dumps({"weight_map": {"a": "one.safetensors"}}))
    put(target, "outside.json", json.dumps({"weight_map": {"a": "../one.safetensors"}}))
    put(target, "none.json", json.dumps({"weight_map": {}}))
put("hub-ref", "commit", "0123456789012345678901234567890123456789")
put("hub-ref", "line", "0123456789012345678901234567890123456789\n")
put("hub-ref", "outside", "../../../elsewhere")

# -- config.json

gpt2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 5, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 2, "n_inner": 6,
    "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "bos_token_id": 0, "eos_token_id": [1, 2],
}
llama = {
    "model_type": "llama", "vocab_size": 5, "max_position_embeddings": 4, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 6, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True, "rope_scaling": None,
}
bert = {
    "model_type": "bert", "vocab_size": 5, "max_position_embeddings": 4, "type_vocab_size": 2, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 6, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "id2label": {"0": "no", "1": "yes"},
}
cnn = {"model_type": "muffle-cnn", "image_height": 4, "image_width": 4, "image_channels": 1, "stages": [2, 4], "activation": "relu", "groups": 2, "global_pooling": True, "classes": 3}
scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
for name, config in [
    ("gpt2", gpt2), ("gpt2-untied", gpt2 | {"tie_word_embeddings": False}), ("llama", llama), ("llama3", llama | {"rope_scaling": scaled}),
    ("llama5", {k: v for k, v in llama.items() if k != "rope_theta"} | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    ("mistral", llama | {"model_type": "mistral", "sliding_window": None}), ("bert", bert), ("cnn", cnn),
    ("implied", {k: v for k, v in gpt2.items() if k != "model_type"}),
]:
    put("model-config", f"{name}.json", json.dumps(config))

# -- tokenizer.json


def tokenizer(model, added=(), **parts):
    parts = {"normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None} | parts
    tokens = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": s} for i, c, s in added]
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, **parts, "model": model})


letters = {c: i for i, c in enumerate("abcdehilmnost")}
bpe = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
put("tokenizer", "bpe.json", tokenizer(
    bpe | {"vocab": letters | {"Ġ": 13, "th": 14, "the": 15}, "merges": ["t h", "th e"]}, [(16, "<s>", True)], pre_tokenizer=level, post_processor=level, decoder=level))
put("tokenizer", "bpe-pairs.json", tokenizer(
    bpe | {"vocab": letters | {"<unk>": 13, "▁": 14, "at": 15, "<0x0A>": 16}, "merges": [["a", "t"]], "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True},
    normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                              {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}))
words = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "the": 3, "cat": 4, "##s": 5, "a": 6, "##t": 7, "s": 8, "##a": 9}
put("tokenizer", "wordpiece.json", tokenizer(
    {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": words}, [(1, "[CLS]", True), (2, "[SEP]", True)],
    normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}, pre_tokenizer={"type": "BertPreTokenizer"},
    post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}}}, decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}))
put("tokenizer", "unigram.json", tokenizer(
    {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁the", -2.0], ["a", -3.0], ["t", -3.5], ["▁", -1.0], ["<0x0A>", -9.0]], "byte_fallback": False},
    normalizer={"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}]},
    pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}))
put("tokenizer", "words.json", tokenizer(
    {"type": "WordLevel", "vocab": {"the": 0, "cat": 1, "?": 2}, "unk_token": "?"}, normalizer={"type": "Lowercase"},
    pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\s+|(?=[A-Z])"}, "behavior": "Removed", "invert": False},
                                                         {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}]},
    post_processor={"type": "BertProcessing", "sep": ["?", 2], "cls": ["the", 0]}, decoder={"type": "BPEDecoder", "suffix": "</w>"}))
put("tokenizer", "padded.json", json.dumps(json.loads(tokenizer({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}, pre_tokenizer={"type": "WhitespaceSplit"})) | {
    "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
    "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}}))

# -- RUN.toml

put("run-toml", "empty.toml", "")
put("run-toml", "usual.toml", """# A run.
[model]
source = "tiny"
lora_rank = 0
[data]
train = "data/train.txt"
validation = "data/valid.txt"
evaluation_data = "public"
labels = ["0", "1"]
max_length = 100
[privacy]
epsilon = 8.0
delta = 1e-5
adjacency = "add-remove"
sampling = "poisson"
accountant = "best"
[optimizer]
name = "dp-muon-bc"
learning_rate = 0.003
clip = 0.1
betas = [0.9, 0.999]
newton_schulz_degree = "quintic"
[training]
steps = 20
lot_size = 8
[evaluation]
beams = 1
""")
put("run-toml", "exact.toml", '[optimizer]\nname = "sgd"\nmomentum = 0.5\nschedule = "cosine"\nwarm_up = 2\n[training]\nepochs = 2.5\nmicro_batch = 4\n')
put("run-toml", "probing.toml", '[privacy]\nsampling = "fixed"\nseed = 1\n[optimizer]\nname = "dp-adam"\nlearning_rate = "hyfree"\n[optimizer.hyfree]\nevery = 3\npoints = 5\nlot = "same"\n')
put("run-toml", "prism.toml", '[model]\nlora_rank = 8\nlora_alpha = 16.0\nlora_on = ["attn"]\nlora_init = "spectral"\n[privacy]\nsigma = 1.0\naccountant = "rdp"\n[optimizer]\nname = "dp-prism"\nridge = 1.0\n')
put("run-toml", "macadam.toml", '[privacy]\nsampling = "shuffled"\nadjacency = "replace-one"\n[optimizer]\nname = "dp-macadam"\nclips = [0.1, 10]\nvariance = "literal"\nvariance_scale = 4.0\n')
put("run-toml", "groups.toml", '[data]\ntrain = "x.csv"\nformat = "csv"\ngroup = "user"\nrows_per_person = 3\ntext_column = "review"\nlabel_column = "2"\n[optimizer]\nname = "adamw"\nweight_decay = 0.01\n')
put("run-toml", "muon.toml", '[optimizer]\nname = "dp-muon"\nnormaliser = "max1"\nshape_scale = "larger-side"\nmuon_group = "all"\nnewton_schulz_steps = 3\nclipping = "automatic"\n[training]\nsteps = 3\n')
for name, change in [
    ("steps", "training.steps=50"), ("name", "optimizer.name=dp-adam"), ("quoted", 'data.train="x y.txt"'), ("list", "data.labels=[\"a\", \"b\"]"), ("auto", "privacy.epsilon=auto"),
    ("inner", "optimizer.hyfree.every=7"), ("pair", "optimizer.betas=[0.5, 0.5]"), ("unknown", "training.stepz=1"),
]:
    put("set", name, change)
for name, number in [("quotient", "1024/42043"), ("exponent", "1e-5"), ("count", "1_000_000"), ("largest", "18446744073709551615"), ("million", "1e6"), ("decimal", " -0.01 ")]:
    put("number", name, number)

# -- data

put("lines", "three.txt", f"A line with {MARK}.\n\nAnother one, Ünïcödé.\r\nThe last {MARK}")
put("lines", "mark.txt", "\ufeff" + f"{MARK}\n")
put("e2e", "lines.txt", f"name : {MARK} | food : Chinese||{MARK} serves Chinese food .\nname : {MARK} | food : Chinese||At {MARK} .\nname : B||B is there .\n")
put("e2e", "table.csv", f'mr,ref\n"name[{MARK}], food[x]","It is ""{MARK}"",\nover there."\nname[B],B\n')
dart = [
    {"tripleset": [[MARK, "CAPITAL_OF", "X"], ["X", "IN", MARK]], "subtree_was_extended": False, "annotations": [{"source": "s", "text": f"{MARK} is the capital."}, {"source": "s", "text": " It. "}]},
    {"tripleset": [["a", "b", "c"]], "annotations": []}, {"tripleset": [], "annotations": [{"text": MARK}]},
]
put("dart", "three.json", json.dumps(dart, indent=1))
put("dart", "one.json", json.dumps(dart[:1]))
put("instructions", "alpaca.jsonl", json.dumps({"instruction": f"Say {MARK}.", "input": "now", "output": MARK, "user": "u1"}) + "\n" + json.dumps({"instruction": "x", "response": "", "context": MARK, "user": 7}) + "\n")
put("instructions", "prompt.jsonl", json.dumps({"prompt": MARK, "completion": f" {MARK}", "user": True}) + "\n")
put("instructions", "messages.jsonl", json.dumps({"messages": [{"role": "system", "content": MARK}, {"role": "user", "content": "hi"}, {"role": "assistant", "content": MARK}], "user": "u"}) + "\n")
put("tsv", "header.tsv", f"sentence\tlabel\nA good film {MARK} \t1\nA bad film\t0\n")
put("tsv", "bare.tsv", f"1\t{MARK}\n0\tbad\n")
put("tsv", "columns.tsv", f"user\tclass\treview\nu1\tgood\t{MARK}\nu2\tbad\t\"half\n")
put("csv", "header.csv", f'text,label\n"A ""good"" film, {MARK}",good\n"two\nlines",bad\n')
put("csv", "columns.csv", f"user,class,review\nu1,good,{MARK}\nu2,bad,x\n")
put("csv", "semicolons.csv", f'text;label\n"a; b";{MARK}\nNA;bad\n')
put("csv", "bare.csv", f"{MARK},1\nother,0\n")
put("jsonl", "plain.jsonl", json.dumps({"text": f"good {MARK}", "label": "good"}) + "\n" + json.dumps({"text": "bad", "label": 0, "extra": {"a": [1]}}) + "\n")
put("jsonl", "keys.jsonl", json.dumps({"review": MARK, "class": True, "user": "u1"}) + "\n" + json.dumps({"review": "", "class": 3, "user": 9}) + "\n")
images = struct.pack(">IIII", 0x803, 3, 2, 2) + bytes(range(12))
put("idx", "images", images)
put("idx", "images.gz", gzip.compress(images, mtime=0))
put("idx", "flat", struct.pack(">IIII", 0x803, 3, 1, 5) + bytes(15))
put("idx-labels", "labels", struct.pack(">II", 0x801, 3) + bytes([1, 2, 9]))
put("idx-labels", "labels.gz", gzip.compress(struct.pack(">II", 0x801, 3) + bytes([0, 0, 255]), mtime=0))


def png(width, height, color, rows, extra=()):
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunk(k, b) for k, b in extra) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


put("png", "grey.png", png(4, 3, 0, b"".join(bytes([filter]) + bytes([7, 1, 200, 9]) for filter in [0, 1, 2])))
put("png", "rgb.png", png(9, 2, 2, b"".join(bytes([filter]) + bytes(27) for filter in [3, 4])))
put("png", "extra.png", png(1, 5, 0, bytes(10), [(b"gAMA", struct.pack(">I", 45455)), (b"tEXt", b"Comment\0" + MARK.encode()), (b"pHYs", bytes(9)), (b"tRNS", bytes(2))]))
put("png", "animated.png", png(4, 1, 0, bytes(5), [(b"acTL", struct.pack(">II", 1, 0)), (b"fcTL", struct.pack(">IIIIIHHBB", 0, 4, 1, 0, 0, 1, 1, 0, 0))]))
put("png-labels", "four.json", "[0, 1, 2, 9]")
put("png-labels", "twelve.json", "[" + ",".join("0123456789" + "01") + "]")
put("png-labels", "marked.json", f'[0, 1, "{MARK}", 3]')
for name, text in [
    ("lines", f"A line with {MARK}.\nAnother.\n"), ("jsonl", json.dumps({"text": MARK, "label": "a"}) + "\n"), ("e2e", f"a : {MARK}||b\n"), ("long", "a" * 300_000 + "\n"),
    ("zeros", "\0" * 200_000), ("dart", json.dumps(dart[:1])),
]:
    put("gzip", f"{name}.gz", gzip.compress(text.encode(), mtime=0))
put("gzip", "two.gz", gzip.compress(b"one\n", mtime=0) + gzip.compress(b"two\n", mtime=0))
put("gzip", "images.gz", gzip.compress(images, mtime=0))
for name, text in [
    ("lines", f"Some text of {MARK}\nMore of it\n"), ("e2e", f"a : {MARK}||b\nc||d\n"), ("csv", f"text,label\n{MARK},1\n"), ("tsv", f"sentence\tlabel\n{MARK}\t1\n"),
    ("jsonl", json.dumps({"text": MARK, "label": "a"}) + "\n"), ("chat", json.dumps({"messages": [{"role": "assistant", "content": MARK}]}) + "\n"),
    ("dart", json.dumps(dart[:1])), ("mr", f"mr,ref\na,{MARK}\n"), ("tabs", f"a\tb\n{MARK}\tc\n"), ("bars", f"a||b\n{MARK}\n"),
]:
    put("sniff", name, text)
put("sniff", "png", png(4, 3, 0, bytes(15)))
put("sniff", "idx", images)
put("prepare", "e2e", f"name : {MARK}||{MARK} is there\nshort||\n||x\n")
put("prepare", "labelled", json.dumps({"text": f"a good film {MARK}", "label": "good"}) + "\n" + json.dumps({"text": "", "label": "bad"}) + "\n" + json.dumps({"text": "x", "label": "none"}) + "\n")
put("prepare", "long", f"{MARK} " * 60 + "||y\n")
put("template", "default", "{source}\n{target}")
put("template", "around", "Review: {source}\nSentiment: {target}.")
put("template", "paper", "paper")
for case in json.loads((Path(__file__).parent.parent / "text/tests/golden/chat.json").read_text()):
    put("chat-template", case["name"], case["template"])
put("score", "good", f"the cat sat on the mat {MARK}\nthe cat sat on the mat {MARK}\n")
put("score", "several", "The cats are running, quickly.\nthe cat ran\tthe cats are running quickly .\n\nempty\nx\n\n")

# -- runs

poisson = {"gaussian": {"lots": {"poisson": {"rate": 0.25}}, "release": [[1.5, 1]]}}
ledger = {"version": 1, "events": [[poisson, 10], ["non-private", 1]]}
put("ledger", "mixed.json", json.dumps(ledger))
put("ledger", "empty.json", json.dumps({"version": 1, "events": []}))
put("ledger", "kinds.json", json.dumps({"version": 1, "events": [
    [{"gaussian": {"lots": "full", "release": [[2.0, 3], [1.0, 1]]}}, 2], [{"gaussian": {"lots": {"fixed-size": {"dataset": 10, "lot": 2}}, "release": [[1.0, 1]]}}, 5],
    [{"gaussian": {"lots": {"shuffled": {"dataset": 10, "lot": 4}}, "release": [[0.8, 49]]}}, 1]]}))
put("ledger", "plain.json", json.dumps({"version": 1, "events": [[poisson, 1000]]}))


def sha(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def chain(session_charges, closing=None):
    """`ledger.json` as crates/muffle/src/run/chain.rs describes it: charges of each session, one after the other."""
    run, entries, charges, sessions, events = "0123456789abcdef" * 2, 0, 0, [], []
    head = sha(b"muffle ledger 3", run.encode())

    def extend(kind, content):
        nonlocal head, entries
        entries += 1
        head = sha(head, bytes([kind]), struct.pack("<Q", entries), sha(content))

    for index, session in enumerate(session_charges):
        id = f"{index:032x}"
        sessions.append({"id": id, "charges": charges, "from": head.hex(), "started": "2026-01-31"})
        extend(0, (run + id + sessions[-1]["started"]).encode())
        for event, count in session:
            for _ in range(count):
                extend(1, (run + id + json.dumps(event, separators=(",", ":"))).encode())
            charges += count
            if events and events[-1][0] == event:
                events[-1][1] += count
            else:
                events.append([event, count])
    if closing:
        extend(2, (run + json.dumps(closing, separators=(",", ":"))).encode())
    return {"version": 3, "run_id": run, "events": events, "sessions": sessions, "closing": closing, "head": head.hex()}


closing = {"weights_sha256": [["model.safetensors", "00"]], "config_sha256": "11", "statement_sha256": "22"}
put("chain", "new.json", json.dumps(chain([[]])))
put("chain", "begun.json", json.dumps(chain([[[poisson, 3]]])))
put("chain", "resumed.json", json.dumps(chain([[[poisson, 2]], [], [[poisson, 1], ["non-private", 1]]])))
put("chain", "closed.json", json.dumps(chain([[[poisson, 2]], [[poisson, 1]]], closing)))
put("keys", "public", "muffle-ed25519-public d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a\n")
put("keys", "secret", "muffle-ed25519-secret 9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60\n")
put("sealed", "begun.json", json.dumps({"version": 1, "draws": 7, "epoch": None}))
put("sealed", "epoch.json", json.dumps({"version": 1, "draws": 7, "epoch": {"key": list(range(32)), "done": 3, "paid": [[1.0, 2], [0.5, 1]]}}))
put("sealed", "marked.json", json.dumps({"version": 1, "draws": MARK, "epoch": None}))
charged = chain([[[poisson, 4]], [[poisson, 6]]])
statement = {
    "version": 4, "software": "muffle 0.1.0", "run_id": charged["run_id"], "private": True, "epsilon": 1.5, "delta": 1e-5, "promised_epsilon": 2.0, "unit": {"adjacency": "add-remove", "rows": 1},
    "person_column": None, "person_rows": None, "accountant": "pld", "sampling": "poisson", "records": 100, "lot_size": 10.0, "noise_multiplier": 1.1, "steps": 10, "model_step": 10, "selection": "last", "randomness": "operating-system",
    "coverage": {"isolation": "exact", "noise": "grid", "figures": "public", "dropped_rows": "vacant", "frozen_weights": False},
    "sessions": charged["sessions"], "ledger": {"version": 1, "events": [[poisson, 10]]}, "ledger_head": charged["head"], "config_sha256": "00" * 32, "weights_sha256": [["model.safetensors", "00"]],
    "summary": ["Covered: every row."],
}
without = {
    "private": False, "epsilon": None, "delta": None, "promised_epsilon": None, "unit": None, "accountant": None, "noise_multiplier": None, "coverage": statement["coverage"] | {"noise": None},
    "ledger": {"version": 1, "events": [["non-private", 10]]},
}
put("statement", "private.json", json.dumps(statement, indent=1))
put("statement", "float.json", json.dumps(statement | {"coverage": {"isolation": "up-to-rounding", "noise": "float", "figures": "NON-PRIVATE", "dropped_rows": "public", "frozen_weights": True}}))
put("statement", "person.json", json.dumps(statement | {"unit": {"adjacency": "replace-one", "rows": 3}, "person_column": "who", "person_rows": "separate", "sampling": "shuffled", "randomness": {"fixed-seed": 7}, "private": False}))
put("statement", "plain.json", json.dumps(statement | without))
put("statement", "half.json", json.dumps(statement | {"unit": None}))


def look(step, epsilon, nll):
    return json.dumps({"step": step, "epsilon": epsilon, "learning_rate": 0.01 * step, "figures": "public", "nll": nll, "accuracy": 0.5 if nll else None, "bleu": None}) + "\n"


put("history", "usual.jsonl", look(0, 0.0, 5.0) + look(5, 0.5, 3.0) + look(10, 0.7, 2.5))
put("history", "exact.jsonl", look(0, None, 5.0) + look(3, None, None) + '{"step": 4')
put("history", "wild.jsonl", look(0, None, 1e308) + look(2**63, 1e-300, -1e308) + look(1, 5e-324, 0.0))
result = {
    "epsilon": 1.5, "delta": 1e-5, "sigma": 1.1, "steps": 10, "model_step": 8, "records": 100, "lot_size": 10.0, "optimizer": "dp-sgd", "out": "run",
    "metrics": {"nll": 2.5, "perplexity": 12.1, "accuracy": 0.4, "tokens": 7, "examples": 2, "bleu": 30.0, "rouge_l": 40.0, "best_nll": 2.25, "best_nll_step": 8}, "private": True, "run_id": charged["run_id"], "sessions": 2,
    "ledger_head": charged["head"], "weights_sha256": [["model.safetensors", "00"]], "statement_sha256": "00" * 32, "figures": "public",
}
put("result", "usual.json", json.dumps(result))
put("result", "none.json", json.dumps(result | {"epsilon": "inf", "delta": None, "sigma": None, "private": False, "metrics": {}, "statement_sha256": None}))
put("samples", "two.json", json.dumps([{"source": "a <b>", "text": "c & d", "references": ["e"]}, {"source": "", "text": "", "references": []}]))
put("samples", "none.json", "[]")

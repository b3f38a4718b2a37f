#!/usr/bin/env python3
"""Generates the tiny models in crates/model/tests/golden, with values of Hugging Face transformers.

    python3 peers/golden_models.py

Each directory has the files of save_pretrained (config.json and the weights) and golden.safetensors:
* lengths, ids      four examples of different lengths, contiguous; each was run alone, so nothing is
                    padded
* targets           language models: the id to be predicted at each position, or -100 for none
* labels            classifiers: one class per example
* logits            one row per position (classifiers: per example)
* losses            the mean cross-entropy of each example over its own targets
* gradnorm2.I.NAME  the squared norm of the gradient of example I's loss with respect to the saved
                    tensor NAME
* grad.I.NAME       that gradient, for some examples only: a directory stays below 150 kB
* greedy            language models: twelve ids by greedy search, after the first two of example 0

Everything is computed in double precision from the saved weights, and rounded to float32 at the end.
Two checks: the gradients against finite differences, which in double precision would reveal a single
operation of the model in float32; and the logits against those of transformers in float32.

The weights are drawn here and not by transformers, so that no gain is 1 and no bias is 0, and the
epsilons of the norms are large. A reader that omits or assumes one of them then fails.
"""

import math
import pathlib
import shutil

import _venv

_venv.ensure({"torch": "torch==2.15.0", "transformers": "transformers==5.22.2"}, "torch")

import safetensors.torch
import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

OUT = pathlib.Path(__file__).resolve().parent.parent / "crates/model/tests/golden"
LIMIT = 150_000  # bytes of a directory
IGNORED = -100
GREEDY = 12


# ---- The models ---------------------------------------------------------------------------------------------------


def gpt2(**changes):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**{
        "n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 61, "n_positions": 32, "activation_function": "gelu_new",
        "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "layer_norm_epsilon": 1e-3,
        "bos_token_id": 0, "eos_token_id": 0, **changes}))


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{
        "num_hidden_layers": 2, "hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 53, "max_position_embeddings": 64, "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "tie_word_embeddings": False, **changes}))


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=47, num_labels=3,
        max_position_embeddings=24, hidden_act="gelu", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-3))


# A head of width 6 has three frequencies: these keep the first, interpolate the second and divide
# the third by 8.
ROPE3 = {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32}

# name: seed, model, type of the saved weights, shard size, examples whose gradients are saved
MODELS = {
    "gpt2-tied": (16, gpt2, torch.float32, None, (0, 2)),
    "gpt2-untied": (9, lambda: gpt2(tie_word_embeddings=False), torch.float32, None, (0, 2)),
    "gpt2-f16": (13, gpt2, torch.float16, None, (0, 2)),
    "llama-gqa": (3, llama, torch.float32, None, (0,)),
    "llama-tied": (4, lambda: llama(tie_word_embeddings=True, num_key_value_heads=4), torch.bfloat16, "10KB", (0, 2)),
    "llama-rope3": (5, lambda: llama(rope_parameters=dict(ROPE3)), torch.float32, None, (2,)),
    "bert-cls": (6, bert, torch.float32, None, (0, 2)),
}


def draw(model, seed):
    """Draws weights away from all defaults: matrices around 0, gains around 1, wide biases around 0."""
    random = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        gain = p.dim() == 1 and name.endswith("weight")
        width = 0.3 if p.dim() == 1 else 0.25
        p.data = torch.randn(p.shape, generator=random) * width + (1.0 if gain else 0.0)


def save(model, where, dtype, shard):
    shutil.rmtree(where, ignore_errors=True)
    model.to(dtype).save_pretrained(where, **({"max_shard_size": shard} if shard else {}))
    (where / "generation_config.json").unlink(missing_ok=True)
    shards = sorted(where.glob("*.safetensors"))
    assert (len(shards) > 1) == (shard is not None), shards
    kept = {p.name for p in where.iterdir()} - {s.name for s in shards}
    assert kept == {"config.json"} | ({"model.safetensors.index.json"} if shard else set()), kept
    weights = {}
    for one in shards:
        weights |= safetensors.torch.load_file(one)
    assert all(w.dtype == dtype for w in weights.values())
    return weights


# ---- Double precision ---------------------------------------------------------------------------------------------


def frequencies(config):
    """The rotary frequencies in double precision; transformers has them in float32."""
    rope, width = config.rope_parameters, config.hidden_size // config.num_attention_heads
    found = []
    for i in range(0, width, 2):
        f = rope["rope_theta"] ** (-i / width)
        if rope["rope_type"] == "llama3":
            turns = rope["original_max_position_embeddings"] * f / (2 * math.pi)
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            share = min(max((turns - low) / (high - low), 0.0), 1.0)
            f = (1 - share) * f / rope["factor"] + share * f
        found.append(f)
    return torch.tensor(found, dtype=torch.float64)


def widen(model):
    """Replaces the two parts of Llama that always compute in float32."""
    for part in model.modules():
        if isinstance(part, LlamaRMSNorm):
            part.forward = lambda x, part=part: F.rms_norm(x, part.weight.shape, part.weight, part.variance_epsilon)
        if isinstance(part, LlamaRotaryEmbedding):
            exact = frequencies(part.config)
            torch.testing.assert_close(part.inv_freq.double(), exact, rtol=1e-6, atol=0)

            def forward(x, position_ids, exact=exact):
                angle = position_ids[..., None].double() * torch.cat([exact, exact])
                return angle.cos(), angle.sin()

            part.forward = forward
    return model


# ---- The values ---------------------------------------------------------------------------------------------------


def examples(vocabulary, lengths, random):
    """Ids with repetitions within an example. Never 0: BERT treats it as padding, without a gradient."""
    found = []
    for n in lengths:
        ids = torch.randint(1, vocabulary, (n,), generator=random)
        ids[n // 2] = ids[0]
        found.append(ids)
    return found


def next_ids(ids, masked):
    targets = torch.cat([ids[1:], torch.tensor([IGNORED])])
    targets[:masked] = IGNORED
    return targets


def logits_of(model, ids):
    return model(input_ids=ids[None]).logits[0]


def loss_of(model, ids, target):
    """Cross-entropy takes the mean over the targets that are not IGNORED."""
    logits = logits_of(model, ids)
    return F.cross_entropy(logits if target.dim() else logits[None], target if target.dim() else target[None],
                           ignore_index=IGNORED)


def check_gradients(model, ids, target, gradients, random):
    """The gradient along a random direction against the central difference."""
    parameters = dict(model.named_parameters())
    direction = {n: torch.randn(p.shape, generator=random, dtype=p.dtype) for n, p in parameters.items()}
    expected = sum((g * direction[n]).sum() for n, g in gradients.items())
    h, ends = 1e-6, []
    with torch.no_grad():
        for move in (h, -2 * h, h):
            for n, p in parameters.items():
                p += move * direction[n]
            ends.append(loss_of(model, ids, target))
    found = (ends[0] - ends[1]) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def greedy(model, ids):
    found = ids.tolist()
    with torch.no_grad():
        for _ in range(GREEDY):
            logits = logits_of(model, torch.tensor(found))[-1]
            best, second = logits.topk(2).values
            assert best - second > 1e-3, "a near tie could change in float32"
            found.append(int(logits.argmax()))
    found = found[len(ids):]
    assert len(set(found)) > 4, f"too few different ids: {found}; choose another seed"
    return torch.tensor(found)


def golden(where, weights, whole, seed):
    classifier = where.name.startswith("bert")
    load = transformers.AutoModelForSequenceClassification if classifier else transformers.AutoModelForCausalLM
    as_is = load.from_pretrained(where, dtype=torch.float32).eval()
    model = widen(load.from_pretrained(where, dtype=torch.float64).eval())
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    for name, p in parameters.items():
        assert torch.equal(p, weights[name].double()), name

    random = torch.Generator().manual_seed(seed)
    classes = model.config.num_labels if classifier else None
    lengths = (9, 4, 15, 2) if classes is None else (9, 4, 15, 1)
    ids = examples(model.config.vocab_size, lengths, random)
    if classes is None:
        targets = [next_ids(x, len(x) // 2 if i in (1, 2) else 0) for i, x in enumerate(ids)]
        made = {"targets": torch.cat(targets), "greedy": greedy(model, ids[0][:2])}
    else:
        targets = list(torch.tensor([2, 0, 1, 2]))
        made = {"labels": torch.stack(targets)}
    made |= {"lengths": torch.tensor(lengths), "ids": torch.cat(ids)}

    rows, losses = [], []
    for i, (x, target) in enumerate(zip(ids, targets)):
        rows.append(logits_of(model, x).detach().view(-1, classes or model.config.vocab_size))
        assert rows[-1].dtype == torch.float64
        torch.testing.assert_close(logits_of(as_is, x).double().view_as(rows[-1]), rows[-1], rtol=1e-5, atol=1e-4)
        model.zero_grad()
        loss = loss_of(model, x, target)
        loss.backward()
        losses.append(loss.detach())
        gradients = {name: p.grad.clone() for name, p in parameters.items()}
        check_gradients(model, x, target, gradients, random)
        for name, gradient in gradients.items():
            made[f"gradnorm2.{i}.{name}"] = (gradient**2).sum().float()
            if i in whole:
                made[f"grad.{i}.{name}"] = gradient.float()
    made |= {"logits": torch.cat(rows).float(), "losses": torch.stack(losses).float()}
    # One entry of metadata: the order of several would differ from run to run.
    made_by = f"peers/golden_models.py, torch {torch.__version__}, transformers {transformers.__version__}"
    safetensors.torch.save_file(made, where / "golden.safetensors", metadata={"made_by": made_by})
    return losses


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for name, (seed, make, dtype, shard, whole) in MODELS.items():
        where = OUT / name
        model = make()
        draw(model, seed)
        weights = save(model, where, dtype, shard)
        losses = golden(where, weights, whole, 100 + seed)
        for file in where.iterdir():
            file.chmod(0o644)  # safetensors writes files that only the owner can read
        size = sum(p.stat().st_size for p in where.iterdir())
        assert size < LIMIT, f"{name}: {size} bytes"
        print(f"{name}: {sum(w.numel() for w in weights.values())} parameters, losses "
              f"{' '.join(f'{float(x):.4f}' for x in losses)}, {size} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes crates/text/tests/golden/generation.json: how Hugging Face transformers goes on with texts.

    python3 peers/golden_generation.py

The models are the tiny ones that peers/golden_models.py made, run in double precision. For each there are some prompts
and, for each setting of beams, length penalty, stopping, shortest and longest text and banned tokens, the new tokens
without the one that ends a text. Texts of several prompts are generated one by one, so nothing is padded.
"""

import json
import pathlib

import _venv

_venv.ensure({"torch": "torch==2.15.0", "transformers": "transformers==5.22.2"}, "torch")

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "crates/model/tests/golden"
OUT = ROOT / "crates/text/tests/golden/generation.json"

PROMPTS = [[1, 2, 3], [7], [11, 4, 4, 20, 9, 30], [5, 40], [33, 2]]
SETTINGS = [
    {"beams": 1, "length_penalty": 1.0, "early": True, "min": 0, "max": 12, "banned": []},
    {"beams": 1, "length_penalty": 1.0, "early": True, "min": 6, "max": 12, "banned": [3, 17]},
    {"beams": 2, "length_penalty": 1.0, "early": True, "min": 0, "max": 10, "banned": []},
    {"beams": 5, "length_penalty": 1.0, "early": True, "min": 0, "max": 14, "banned": []},
    {"beams": 5, "length_penalty": 1.0, "early": True, "min": 5, "max": 14, "banned": [8, 21, 40]},
    {"beams": 5, "length_penalty": 0.0, "early": True, "min": 0, "max": 14, "banned": []},
    {"beams": 4, "length_penalty": 2.0, "early": False, "min": 0, "max": 12, "banned": []},
    {"beams": 3, "length_penalty": 1.0, "early": False, "min": 2, "max": 12, "banned": [1]},
    {"beams": 3, "length_penalty": -1.0, "early": True, "min": 0, "max": 12, "banned": []},
]


def main():
    cases = []
    for name in ["gpt2-tied", "gpt2-untied", "llama-gqa", "llama-tied"]:
        model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name).double().eval()
        vocab = model.config.vocab_size
        # Ends that come often: a handful of tokens, so that texts of all lengths occur.
        for stop in [[0], [5, 12, 19, 26, 33, 47]]:
            for setting in SETTINGS:
                outputs = []
                for prompt in PROMPTS:
                    ids = torch.tensor([[token % vocab for token in prompt]])
                    made = model.generate(
                        ids,
                        attention_mask=torch.ones_like(ids),
                        do_sample=False,
                        num_beams=setting["beams"],
                        length_penalty=setting["length_penalty"],
                        early_stopping=setting["early"] if setting["beams"] > 1 else False,
                        min_new_tokens=setting["min"] or None,
                        max_new_tokens=setting["max"],
                        bad_words_ids=[[token] for token in setting["banned"]] or None,
                        eos_token_id=stop,
                        pad_token_id=stop[0],
                    )[0, ids.shape[1]:].tolist()
                    while made and made[-1] in stop:
                        made.pop()
                    outputs.append(made)
                cases.append({"model": name, "stop": stop, **setting, "outputs": outputs})
    lengths = [len(text) for case in cases for text in case["outputs"]]
    print(f"{len(cases)} settings, texts of {min(lengths)} to {max(lengths)} tokens")
    OUT.write_text(json.dumps({"script": "peers/golden_generation.py", "prompts": PROMPTS, "cases": cases}) + "\n")


if __name__ == "__main__":
    main()

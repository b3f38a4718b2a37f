"""A causal language model of `transformers` with low-rank adapters of PEFT.

Without arguments, it makes a small new model, so that it needs no download:

    python language_model.py [MODEL]
"""

import sys
import tempfile

import muffle
import peft
import transformers


def small_model() -> tuple[transformers.PreTrainedModel, None]:
    """A GPT-2 of two layers with new parameters; its records are lists of tokens."""
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config), None


def pretrained(name: str) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """A model of the hub, or of a folder, with its tokenizer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(name, dtype="float32")
    return model, transformers.AutoTokenizer.from_pretrained(name)


def main(out: str, name: str | None = None, steps: int = 20) -> muffle.Run:
    """Trains adapters on made-up records, and returns the run."""
    transformers.set_seed(0)
    model, tokenizer = small_model() if name is None else pretrained(name)
    if tokenizer is None:
        records: list = [[(3 * i + k) % 64 for k in range(8 + i % 8)] for i in range(400)]
    else:
        records = [f"Order {i}: {i % 7} apples and {i % 5} pears." for i in range(400)]
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(model, config).eval()
    return muffle.fit(
        adapted, records, tokenizer=tokenizer, out=out, epsilon=8.0, delta=1e-5, steps=steps,
        optimizer="dp-adam-bc", lot_size=100, micro_batch=32,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        run = main(f"{folder}/run", *sys.argv[1:2])
        print(f"ε = {run.epsilon:.3f}; the adapter is in {run.model}")
        assert muffle.verify(run.folder)

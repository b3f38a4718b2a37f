"""Models of `transformers` and adapters of PEFT, and the same GPT-2 on both engines."""

import muffle
import pytest

torch = pytest.importorskip("torch", reason="SKIPPED: muffle.fit needs PyTorch (pip install torch)")
transformers = pytest.importorskip("transformers", reason="SKIPPED: pip install transformers")
tokenizers = pytest.importorskip("tokenizers")

from muffle.torch import Callback

WORDS = "the a cat dog sat ran on under mat tree and then slept barked saw it was red blue big".split()


def texts(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, 12, (count,), generator=generator).tolist()
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (n,), generator=generator)) for n in lengths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small GPT-2 with a tokenizer, in the layout of Hugging Face."""
    place = tmp_path_factory.mktemp("gpt2")
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(texts(200), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>", bos_token="<|endoftext|>")
    tokenizer.save_pretrained(place)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=32, n_layer=2, n_head=4,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    return place


def load(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def test_a_language_model_and_its_tokenizer_train_directly(folder, tmp_path):
    model, tokenizer = load(folder)
    before = model.transformer.wte.weight.clone()
    run = muffle.fit(
        model, texts(60), tokenizer=tokenizer, out=tmp_path / "run", epsilon=8.0, steps=3,
        lot_size=16, optimizer="dp-muon-bc", progress=False,
    )
    assert muffle.verify(run.folder) and not torch.equal(before, model.transformer.wte.weight)
    again, _ = load(run.model)
    for a, b in zip(again.parameters(), model.parameters()):
        assert torch.equal(a, b)
    # The tied head is one parameter, with the role of a table.
    assert 'source = "external:pretrained"' in (run.folder / "config.toml").read_text()
    # The program, too, reads the saved model.
    assert muffle.generate(run.model, prompts=["the cat"], max_new_tokens=3)


def test_adapters_of_peft_train_and_the_rest_is_frozen(folder, tmp_path):
    peft = pytest.importorskip("peft", reason="SKIPPED: pip install peft")
    model, tokenizer = load(folder)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, config).eval()
    run = muffle.fit(
        adapted, texts(60), tokenizer=tokenizer, out=tmp_path / "run", epsilon=8.0, steps=2,
        lot_size=16, optimizer="dp-adam", progress=False,
    )
    assert muffle.verify(run.folder) and run.statement["coverage"]["frozen_weights"]
    assert (run.model / "adapter_model.safetensors").exists()
    for name, value in adapted.get_base_model().state_dict().items():
        original = name.replace(".base_layer", "")
        if original in before:
            assert torch.equal(value, before[original])
    factors = [p for name, p in adapted.named_parameters() if "lora_B" in name]
    assert factors and all(p.abs().sum() > 0 for p in factors)


def test_prism_trains_adapters_of_full_rank(folder, tmp_path):
    peft = pytest.importorskip("peft", reason="SKIPPED: pip install peft")

    notes = []

    class Notes(Callback):
        def on_step(self, state):
            notes.extend(state.notes)

    def train(out, **options):
        notes.clear()
        model, tokenizer = load(folder)
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM", **options)
        adapted = peft.get_peft_model(model, config).eval()
        before = {name: p.detach().clone() for name, p in adapted.named_parameters() if p.requires_grad}
        run = muffle.fit(
            adapted, texts(60), tokenizer=tokenizer, out=out, epsilon=8.0, steps=2, lot_size=16,
            optimizer="dp-prism", progress=False, callbacks=[Notes()],
        )
        assert all((p - before[name]).abs().sum() > 0 for name, p in adapted.named_parameters() if name in before)
        return run

    run = train(tmp_path / "run", init_lora_weights="pissa")
    assert run.private and muffle.verify(run.folder) and not notes
    # The usual start, at which one factor is zero.
    train(tmp_path / "zero")
    assert any("directions" in note for note in notes), notes


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        ("sgd", {}),
        # Noise that is far below the tolerance, and a clip bound below all norms.
        ("dp-sgd", {"privacy.sigma": 1e-7, "optimizer.clip": 0.5, "privacy.epsilon": "auto"}),
        # γ above all noise, which Adam would normalise to whole steps.
        ("dp-macadam", {"privacy.sigma": 1e-7, "privacy.epsilon": "auto", "optimizer.epsilon": 1e-3}),
    ],
)
def test_both_engines_train_the_same_gpt2(folder, optimizer, settings, tmp_path):
    lines = texts(24, seed=1)
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    settings = {
        **settings, "privacy.sampling": "full", "training.lot_size": 24, "training.steps": 3, "optimizer.ema_decay": 0, "optimizer.learning_rate": 0.1,
    }
    first = muffle.train(
        out=tmp_path / "cpu", optimizer=optimizer, progress=False,
        set={**settings, "model.source": str(folder), "data.train": str(tmp_path / "train.txt"),
             "data.format": "lines"},
    )
    model, tokenizer = load(folder)
    muffle.fit(
        model, lines, tokenizer=tokenizer, out=tmp_path / "torch", optimizer=optimizer,
        set=settings, progress=False,
    )
    theirs, start = load(first.model)[0], load(folder)[0]
    moved = distance = 0.0
    for a, b, c in zip(model.parameters(), theirs.parameters(), start.parameters()):
        distance += (a - b).detach().square().sum().item()
        moved += (b - c).detach().square().sum().item()
    assert moved > 0 and distance**0.5 <= 1e-4 * moved**0.5

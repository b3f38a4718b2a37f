"""The example scripts run, in a short version."""

import importlib.util
import pathlib

import muffle
import pytest

pytest.importorskip("torch", reason="SKIPPED: the examples need PyTorch (pip install torch)")

FOLDER = pathlib.Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == {"custom_layer", "language_model", "own_cnn"}


def test_own_cnn(tmp_path):
    run = load("own_cnn").main(tmp_path / "run", records=600, steps=6)
    assert muffle.verify(run.folder) and run.metrics["accuracy"] > 0.5


def test_custom_layer(tmp_path, capsys):
    run = load("custom_layer").main(tmp_path / "run", count=400, steps=4)
    assert muffle.verify(run.folder) and "['1.factor', '1.shift']" in capsys.readouterr().out


def test_language_model(tmp_path):
    pytest.importorskip("transformers", reason="SKIPPED: pip install transformers")
    pytest.importorskip("peft", reason="SKIPPED: pip install peft")
    run = load("language_model").main(tmp_path / "run", steps=2)
    assert muffle.verify(run.folder) and (run.model / "adapter_model.safetensors").exists()

"""Runs with a folder: train, resume, verify, audit, generate, predict."""

import json
import struct

import muffle
import pytest

SHORT = {
    "training.steps": 4,
    "training.lot_size": 8,
    "evaluation.examples": 4,
    "evaluation.test_examples": 4,
    "evaluation.samples": 1,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    reports = []
    trained = muffle.train(
        out=out, set={**SHORT, "privacy.epsilon": 3.0}, progress=lambda *report: reports.append(report)
    )
    return trained, reports


def test_a_run_is_private_and_verified(run):
    trained, reports = run
    assert trained.private and trained.steps == 4 and trained.epsilon <= 3
    assert trained.statement["epsilon"] == trained.epsilon and trained.metrics["nll"] > 0
    kinds = [kind for kind, _ in reports]
    assert kinds.count("started") == 1 and kinds.count("step") >= 4
    assert dict(reports)["started"]["steps"] == 4
    verdict = muffle.verify(trained.folder)
    assert verdict and verdict.private and verdict.epsilon == pytest.approx(trained.epsilon)
    # A forged statement is found.
    path = trained.model / "privacy.json"
    original = path.read_text()
    statement = json.loads(original)
    statement["epsilon"] = 0.1
    path.write_text(json.dumps(statement))
    assert not muffle.verify(trained.folder).consistent
    path.write_text(original)


def test_a_model_generates(run):
    texts = muffle.generate(run[0].folder, prompts=["The"], max_new_tokens=5)
    assert len(texts) == 1
    with pytest.raises(muffle.InputError, match="language model"):
        muffle.predict(run[0].folder, "absent.csv")


def test_an_exception_stops_a_run_that_can_be_resumed(tmp_path):
    class Enough(Exception):
        pass

    def stop(kind, content):
        if kind == "step" and content["step"] == 2:
            raise Enough

    with pytest.raises(Enough):
        muffle.train(out=tmp_path / "run", set=SHORT, progress=stop)
    resumed = muffle.resume(tmp_path / "run", progress=False)
    assert resumed.steps == 4 and len(resumed.statement["sessions"]) == 2


def test_plans_and_refusals(tmp_path):
    plan = muffle.plan(set=SHORT, optimizer="dp-sgd")
    assert (plan.optimizer, plan.steps, plan.lot_size) == ("dp-sgd", 4, 8) and plan.epsilon <= 8
    with pytest.raises(muffle.InputError, match="did you mean"):
        muffle.train(out=tmp_path / "a", optimizer="dp-adm")
    with pytest.raises(muffle.InputError, match="privacy.epsilon"):
        muffle.train(out=tmp_path / "b", set={"privacy.epsilon": -1})
    with pytest.raises(muffle.InputError):
        muffle.train(tmp_path / "absent.toml", out=tmp_path / "c")
    with pytest.raises(muffle.InputError, match="give prompts or sources"):
        muffle.generate("embedded")


def write_images(folder, name, count):
    """Writes images of 4 x 4 pixels of which one half is bright, with its number as label."""
    labels = bytes(i % 2 for i in range(count))
    pixels = b"".join(bytes([200, 200, 10, 10] if label else [10, 10, 200, 200]) * 4 for label in labels)
    images = folder / f"{name}-images-idx3-ubyte"
    images.write_bytes(struct.pack(">IIII", 0x803, count, 4, 4) + pixels)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels)
    return images


def test_a_classifier_predicts(tmp_path):
    changes = {
        "model.source": "linear",
        "data.train": str(write_images(tmp_path, "train", 60)),
        "data.labels": ["left", "right"],
        "privacy.delta": 1e-3,
        "training.steps": 4,
        "training.lot_size": 8,
    }
    trained = muffle.train(out=tmp_path / "run", set=changes, progress=False)
    predicted = muffle.predict(trained.folder, write_images(tmp_path, "new", 2))
    assert [row["row"] for row in predicted] == [1, 2]
    for row in predicted:
        assert set(row["probabilities"]) == {"left", "right"}
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
        assert sum(row["probabilities"].values()) == pytest.approx(1)
    assert predicted[0]["probabilities"] != predicted[1]["probabilities"]
    with pytest.raises(muffle.InputError, match="absent"):
        muffle.predict(trained.folder, tmp_path / "absent")


def test_the_mechanism_is_audited():
    audit = muffle.audit(noise_multiplier=1.0, trials=2000)
    assert audit.passed and 0 < audit.epsilon_lower < audit.epsilon_claimed
    with pytest.raises(muffle.InputError, match="expected no configuration"):
        muffle.audit("mechanism", "RUN.toml")
    with pytest.raises(muffle.InputError, match="expected \"mechanism\""):
        muffle.audit("everything")

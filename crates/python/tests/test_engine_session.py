"""The seam between the curator and an engine in Python, without PyTorch."""

import array
import json
import os

import muffle
import pytest
from muffle._muffle import EngineSession


class LeastSquares:
    """½ (w · x − y)² in plain Python, with the methods of `muffle.torch._seam.Seam`."""

    def __init__(self, records, error=None):
        self.records, self.error = records, error
        self.width = len(records[0]) - 1
        self.weights = [0.1] * self.width
        self.affine = None

    def trainable(self):
        return [("weights", [self.width], "vector", None, False, False)]

    def inputs(self, examples):
        return "records", 1

    def read_parameter(self, index, into):
        into[:] = array.array("f", self.weights).tobytes()

    def write_parameter(self, index, values):
        self.weights = array.array("f", bytes(values)).tolist()

    def loaded(self):
        pass

    def unload(self):
        self.observed = None

    def record(self, index):
        if index >= 0:
            return self.records[index]
        shape, content = divmod(-1 - index, 3)
        return [1.0 + content, *[0.5 + shape] * self.width]

    def residual(self, index):
        *x, y = self.record(index)
        return sum(w * a for w, a in zip(self.weights, x)) - y, x

    def validate(self, index):
        if len(self.record(index)) != self.width + 1:
            raise ValueError(f"expected {self.width + 1} numbers, got {len(self.record(index))}")

    def losses(self, indices):
        return [0.5 * self.residual(i)[0] ** 2 for i in indices]

    def use_identity(self):
        self.affine = None

    def use_affine(self, tensors):
        assert len(tensors) == 1
        self.affine = [array.array("f", bytes(values)).tolist() for values in tensors[0]]

    def start_sum(self):
        self.total = [0.0] * self.width

    def observe(self, indices, blocks):
        assert blocks == [[0]]
        self.observed = [[r * a for a in x] for r, x in map(self.residual, indices)]
        center, scale = self.affine or ([0.0] * self.width, [1.0] * self.width)
        squares = [
            sum(((g - c) / s) ** 2 for g, c, s in zip(gradient, center, scale))
            for gradient in self.observed
        ]
        if self.error == "norm":
            squares = [0.5 * square for square in squares]
        if self.error == "count":
            squares = squares[1:]
        if self.error == "raise":
            raise OSError("device lost")
        return self.losses(indices), squares

    def accumulate(self, weights):
        for weight, gradient in zip(weights[0], self.observed):
            self.total = [t + weight * g for t, g in zip(self.total, gradient)]

    def read_sum(self, index, into):
        into[:] = array.array("d", self.total).tobytes()

    def end_sum(self):
        pass


def records(count=300):
    return [[(i % 7) / 3 - 1, (i % 5) / 2 - 1, 2.0 * ((i % 7) / 3 - 1) - ((i % 5) / 2 - 1)] for i in range(count)]


CHANGES = ['model.source="external:new"', "privacy.epsilon=8.0", "training.steps=60", "training.lot_size=100"]


def session(engine, out, *changes, optimizer="dp-adam"):
    return EngineSession.create(
        engine, len(engine.records), os.fspath(out), optimizer=optimizer, changes=[*CHANGES, *changes]
    )


def test_a_run_on_an_engine_in_python(tmp_path):
    out, engine = tmp_path / "run", LeastSquares(records())
    run = session(engine, out, "optimizer.learning_rate=0.15")
    run.record("{}")
    assert run.epsilon() == 0 and run.unchanged() == ["weights"]
    while run.step() is not None:
        pass
    state = json.loads(run.state())
    assert state["step"] == state["steps"] == run.steps() == 60
    assert 0 < run.epsilon() <= 8 and run.unchanged() == []
    run.record(json.dumps({"rmse": 0.5}))
    released = array.array("f", bytes(run.released(0))).tolist()
    assert released == pytest.approx([2, -1], abs=0.4)
    os.mkdir(state["model_folder"])
    with open(os.path.join(state["model_folder"], "model.npz"), "wb") as file:
        file.write(run.released(0))
    result = json.loads(run.finish(json.dumps({"rmse": 0.5})))
    assert result["private"] and result["metrics"]["best_rmse"] == 0.5
    assert muffle.verify(out)
    with pytest.raises(muffle.InputError, match="the run is finished"):
        run.step()


@pytest.mark.parametrize("optimizer", ["dp-macadam", "dp-adaclip"])
def test_a_run_in_affine_coordinates(optimizer, tmp_path):
    out, engine = tmp_path / "run", LeastSquares(records())
    run = session(engine, out, "optimizer.learning_rate=0.3", optimizer=optimizer)
    centered = 0
    while run.step() is not None:
        centered += engine.affine is not None and any(engine.affine[0])
    assert centered > 50
    released = array.array("f", bytes(run.released(0))).tolist()
    assert abs(released[0] - 2) + abs(released[1] + 1) < 2.5
    run.close()
    engine = LeastSquares(records())
    engine.use_affine = lambda tensors: None
    with pytest.raises(muffle.Error, match="the norm reported for an example"):
        session(engine, tmp_path / "other", optimizer=optimizer)


def test_a_run_is_resumed(tmp_path):
    out, engine = tmp_path / "run", LeastSquares(records())
    run = session(engine, out)
    run.step()
    run.save()
    with pytest.raises(muffle.InputError, match="another process is working on this run"):
        EngineSession.resume(engine, 300, os.fspath(out))
    run.close()
    run = EngineSession.resume(engine, 300, os.fspath(out))
    assert json.loads(run.state())["step"] == 1 and run.step() == []
    run.close()
    other = LeastSquares(records())
    other.inputs = lambda _: ("other records", 1)
    with pytest.raises(muffle.InputError, match="not those that the run started with"):
        EngineSession.resume(other, 300, os.fspath(out))
    other.inputs = lambda _: ("records", 2)
    with pytest.raises(muffle.InputError, match="not trained are not those"):
        EngineSession.resume(other, 300, os.fspath(out))


@pytest.mark.parametrize(
    ("error", "words"),
    [("norm", "the norm reported for an example"), ("count", "observed other examples"), ("raise", "device lost")],
)
def test_wrong_engines_are_refused(error, words, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(muffle.Error, match=words) as raised:
        session(LeastSquares(records(), error), out)
    assert not out.exists()
    assert isinstance(raised.value.__cause__, OSError) == (error == "raise")


def test_wrong_records_and_settings_are_refused(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(muffle.InputError, match="record 301: expected 3 numbers, got 2"):
        session(LeastSquares([*records(), [1.0, 2.0]]), out)
    with pytest.raises(muffle.InputError, match="low-rank pairs"):
        session(LeastSquares(records()), out, optimizer="dp-prism")
    with pytest.raises(muffle.InputError, match="expected the model of a program"):
        session(LeastSquares(records()), out, 'model.source="tiny"')
    assert not out.exists()

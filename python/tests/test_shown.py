"""What a notebook shows of models and estimators, and what a model says of itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import fitted
import pytest
import torch
from torch import Tensor, nn

from flambeau import FlambeauError, ParamError, TorchEstimator, TorchModel, TorchRegressor
from flambeau._redacted import redacted
from flambeau._shown import curves
from flambeau._tensors import TensorColumns

SVG = "{http://www.w3.org/2000/svg}"


class Pair(nn.Module):
    """Two outputs over an image and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 2)

    def forward(self, image: Tensor, age: Tensor) -> dict[str, Tensor]:
        return {"score": image.sum((1, 2)) + age, "classes": self.layer(image.flatten(1))}


def pair(folder: Path) -> TorchModel:
    inputs = [
        TensorColumns("image", ("pixels",), "float32", (3, 4)),
        TensorColumns("age", ("age",), "int64", ()),
    ]
    estimator = TorchEstimator(
        model=Pair(), loss="mse", inputCols=["pixels", "age"], outputKinds=["number", "logits"]
    )
    model: TorchModel = fitted.fitted(estimator, Pair(), inputs, folder)
    return model


class Texts(HTMLParser):
    """The texts of an HTML fragment, and that its tags close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "br":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_inputs_and_outputs_say_what_transform_reads_and_writes(tmp_path: Path) -> None:
    model = pair(tmp_path)
    assert [(i.name, i.columns, i.dtype, i.shape) for i in model.inputs] == [
        ("image", ("pixels",), "float32", (3, 4)),
        ("age", ("age",), "int64", ()),
    ]
    assert [(o.name, o.kind) for o in model.outputs] == [
        ("prediction.score", "number"),
        ("prediction.classes", "logits"),
    ]
    assert model.outputs[0].columnType == "double" and model.outputs[1].columnType.startswith("struct<")
    with pytest.raises(AttributeError):
        model.inputs[0].name = "other"  # type: ignore[misc]


def test_outputs_are_the_columns_of_transform(tmp_path: Path, spark: object) -> None:
    frame = spark.createDataFrame([([1.0, 2.0, 3.0, 4.0],)], "features array<float>")  # type: ignore[attr-defined]
    for number, model in enumerate(
        [
            fitted.classifier(tmp_path / "c"),
            fitted.classifier(tmp_path / "p", probabilityCol="", rawPredictionCol="raw"),
            fitted.regressor(tmp_path / "s"),
            fitted.regressor(tmp_path / "v", nn.Linear(4, 2)),
        ]
    ):
        fields = model.transform(frame).schema.fields[1:]
        kinds = [type(f.dataType).__name__.replace("VectorUDT", "vector") for f in fields]
        types = [
            kind if kind == "vector" else f.dataType.simpleString()
            for kind, f in zip(kinds, fields, strict=True)
        ]
        found = [(output.name, output.columnType) for output in model.outputs]
        assert found == [(f.name, kind) for f, kind in zip(fields, types, strict=True)], number


def test_repr_is_a_line_with_the_best_epoch(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    text = repr(model)
    assert text.startswith(f"TorchRegressionModel: uid={model.uid}, inputs=[features: float32[4]]")
    assert "outputs=[prediction: double]" in text and text.endswith("val_loss=2 in the last epoch, 1")
    model._history = {**model._history, "bestEpoch": 0}
    assert repr(model).endswith("val_loss=3 in the best epoch, 0")
    assert "\n" not in text and repr(TorchModel()).startswith("TorchModel_")


def test_html_tells_of_the_model(tmp_path: Path) -> None:
    model = fitted.classifier(tmp_path, featuresCol="x<script>&")
    html = model._repr_html_()
    texts = Texts(html).texts
    for wanted in (
        "Mlp with 83 parameters",
        "features: float32[4] of features",
        "probability: vector (logits)",
        "featuresCol: 'x<script>&'",
        "last epoch (1)",
        "val_mae",
    ):
        assert wanted in texts
    assert "<script" not in html and html.count("<polyline") == 2
    assert "TorchModel_" in TorchModel()._repr_html_()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:hidden@bucket/dir", "s3://bucket/dir"),
        ("https://user:hid@den@host/dir", "https://host/dir"),
        ("https://hidden@host", "https://host"),
        ("abfss://container@account/dir", "abfss://container@account/dir"),
        ("abfss://user:hidden@account/dir?sig=hidden", "abfss://account/dir"),
        ("no such blob: 'https://host/b?sv=1&sig=hidden%2B': 404", "no such blob: 'https://host/b': 404"),
        ("mail me@host of s3://bucket/dir", "mail me@host of s3://bucket/dir"),
    ],
)
def test_what_is_shown_or_logged_has_no_secrets_of_uris(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_html_of_an_estimator_has_its_params_and_no_password() -> None:
    estimator = TorchRegressor(
        model=nn.Linear(2, 1),
        workDir="s3://key:hidden@bucket/dir?sig=hidden",
        metrics={"mine": max},
        epochs=3,
    )
    html = estimator._repr_html_()
    texts = Texts(html).texts
    assert "model: Linear with 3 parameters" in texts and "epochs: 3" in texts
    assert "metrics: {'mine': max}" in texts
    assert "hidden" not in html and "workDir: 's3://bucket/dir'" in texts


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314  our own


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = parsed(svg).iter(f"{SVG}polyline")
    return [[tuple(map(float, p.split(","))) for p in line.attrib["points"].split()] for line in lines]  # type: ignore[misc]


def test_a_curve_is_scaled_to_its_values() -> None:
    svg = curves({"loss": [4.0, 2.0, 1.0], "val_loss": [5.0, 3.0, 3.0]})
    root = parsed(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    first, second = points(svg)
    xs, ys = zip(*first, *second, strict=True)
    assert min(xs) >= 0 and max(xs) <= width and min(ys) >= 0 and max(ys) <= height
    # The picture's y grows downwards: 5 is on top, 1 at the bottom, and 3 half way.
    top, bottom = second[0][1], first[2][1]
    assert (top, bottom) == (min(ys), max(ys)) and second[1][1] == pytest.approx((top + bottom) / 2, abs=0.1)
    assert first[1][0] - first[0][0] == pytest.approx(first[2][0] - first[1][0], abs=0.2)
    texts = [element.text for element in root.iter() if element.text]
    assert {"loss", "val_loss", "1", "5", "0", "2"} <= set(texts)


def test_a_curve_has_gaps_and_dots() -> None:
    svg = curves({"loss": [1.0, 2.0, None, float("nan"), 3.0, float("inf")]})
    assert [len(line) for line in points(svg)] == [2]
    assert len(list(parsed(svg).iter(f"{SVG}circle"))) == 1
    assert len(list(parsed(curves({"loss": [1.0]})).iter(f"{SVG}circle"))) == 1
    assert curves({"loss": [None]}) == "" and curves({}) == "" and curves({"loss": []}) == ""


def test_a_long_curve_is_drawn_with_few_points_and_its_peaks() -> None:
    losses: list[float | None] = [2.0 + epoch % 2 / 10 for epoch in range(20_000)]
    losses[777], losses[12_345] = 9.0, -3.0
    of_loss, of_validation = points(curves({"loss": losses, "val_loss": losses[:500]}))
    assert 200 < len(of_loss) <= 502 and len(of_validation) == 500
    xs, ys = zip(*of_loss, strict=True)
    assert list(xs) == sorted(xs) and max(after - before for before, after in pairwise(xs)) < 3
    # Its ends are drawn, and its peaks where they are.
    ends = points(curves({"loss": [-3.0, 9.0]}))[0]
    (left, bottom), (right, top) = ends
    assert (xs[0], xs[-1]) == (left, right)
    for epoch, height in ((777, top), (12_345, bottom)):
        assert xs[ys.index(height)] == pytest.approx(left + (right - left) * epoch / 19_999, abs=0.1)
    losses[10_000] = None
    assert sum(map(len, points(curves({"loss": losses})))) <= 504


def test_a_curves_names_are_escaped() -> None:
    root = parsed(curves({"<b>&": [1.0, 1.0]}))
    assert "<b>&" in [element.text for element in root.iter()]


def test_the_history_is_plotted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    model = fitted.regressor(tmp_path)
    axes = model.plot()
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == {
        "loss": [2.0, 1.0],
        "val_loss": [3.0, 2.0],
    }
    assert model.plot("mae", ax=axes) is axes and axes.lines[-1].get_label() == "mae"
    with pytest.raises(ParamError, match=r"no column 'val_mea'.*did you mean 'val_mae'"):
        model.plot("val_mea")
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(FlambeauError, match=r"pip install flambeau\[plot\]"):
        model.plot()


def test_an_epoch_without_a_finite_validation_loss_was_validated(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    records = [
        {**record, "validationLoss": None, "validationMetrics": []} for record in fitted.HISTORY["epochs"]
    ]
    model._history = {"epochs": records}
    assert model.history["val_loss"] == [None, None]
    model._counts = {**model._counts, "numValidationRows": 0}
    assert "val_loss" not in model.history


def test_a_wrong_word_is_answered_with_the_right_one() -> None:
    with pytest.raises(ParamError, match=r"device must be .*'cpu'.*did you mean 'cuda'"):
        TorchRegressor(model=nn.Linear(1, 1), device="cuda0")
    with pytest.raises(ParamError, match="did you mean 'numWorkers'"):
        TorchRegressor(model=nn.Linear(1, 1), numWorker=2)  # type: ignore[call-arg]


def test_module_and_loss_of_a_program_are_named(tmp_path: Path) -> None:
    model = fitted.regressor(tmp_path)
    script = torch.jit.script(fitted.Scalar())
    import io

    file = io.BytesIO()
    torch.jit.save(script, file)
    model._programs = {"scripted": file.getvalue()}
    assert "Scalar with 5 parameters" in model._repr_html_()
    model._programs = {"exported": b""}
    assert "an exported program" in model._repr_html_()


def test_editors_see_the_keywords() -> None:
    import inspect

    from flambeau import TorchClassifier

    for kind in (TorchEstimator, TorchRegressor, TorchClassifier):
        parameters = inspect.signature(kind).parameters
        assert parameters["numWorkers"].annotation == "int" and parameters["epochs"].default == 1

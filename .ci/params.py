"""Write what is made of the training job's schema: the params of Python and of Scala, and their page.

The schema is `native/train`'s, and says of each param its type, default, bounds and doc, and what group it
belongs to, and whether it is for experts. With `--check`, nothing is written, and a file that is not what
would be written fails.
"""

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "docs" / "training-job.schema.json"
PAGE = ROOT / "docs" / "params.md"
PYTHON = ROOT / "python" / "flambeau" / "params" / "declared.py"
SCALA = ROOT / "jvm" / "src" / "main" / "scala" / "flambeau" / "DeclaredParams.scala"
SCALA_SHARED = SCALA.with_name("SharedParams.scala")
MADE = "Made from docs/training-job.schema.json by `make params`; do not edit."

# Spark ML's own traits for single params.
SPARK = {
    "checkpointInterval": "HasCheckpointInterval",
    "featuresCol": "HasFeaturesCol",
    "inputCols": "HasInputCols",
    "labelCol": "HasLabelCol",
    "outputCols": "HasOutputCols",
    "predictionCol": "HasPredictionCol",
    "probabilityCol": "HasProbabilityCol",
    "rawPredictionCol": "HasRawPredictionCol",
    "seed": "HasSeed",
    "threshold": "HasThreshold",
    "thresholds": "HasThresholds",
    "validationIndicatorCol": "HasValidationIndicatorCol",
    "weightCol": "HasWeightCol",
}
# Those that give their param a default, which ours has not.
DEFAULT_OF_SPARK = {"threshold"}

# Params whose values JSON's types do not tell whole: type and check in Python.
PYTHON_KINDS = {
    "gradientGroups": ("list[list[str]]", "groups_of_names"),
    "initialModel": ("str | Model", "saved_model"),
    "inputShapes": ("list[list[int]]", "shapes"),
    "inputTypes": ("list[str]", "input_types"),
    "outputCols": ("list[str]", "output_columns"),
    "outputKinds": ("list[str]", "output_kinds"),
    "thresholds": ("list[float]", "threshold_list"),
}
# The same in Scala: the param's class, the value's type, and the check.
SCALA_KINDS = {
    "gradientGroups": ("GroupsParam", "Array[Array[String]]", "Groups"),
    "inputShapes": ("ShapesParam", "Array[Array[Int]]", "Shapes"),
    "inputTypes": ("StringArrayParam", "Array[String]", "InputTypes"),
    "outputCols": ("StringArrayParam", "Array[String]", "OutputColumns"),
    "outputKinds": ("StringArrayParam", "Array[String]", "OutputKinds"),
    "thresholds": ("DoubleArrayParam", "Array[Double]", "Thresholds"),
}
# What Python takes besides, and sets other params to.
PYTHON_ALSO = {"featuresCol": " | list[str]", "inputCols": " | dict[str, str]"}
# A further setter in Scala: the type that it takes, and the setter that it calls.
SCALA_ALSO = {"featuresCol": ("Array[String]", "setFeaturesCols")}
INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Declared:
    """A param as the schema has it."""

    name: str
    schema: dict[str, Any]
    is_expert: bool

    @cached_property
    def kind(self) -> str:
        """`integer`, `number`, `boolean`, `string` or `array`."""
        types = self.schema["type"]
        return types if isinstance(types, str) else next(one for one in types if one != "null")

    @property
    def doc(self) -> str:
        """The description in one line."""
        return " ".join(self.schema["description"].split())

    @property
    def default(self) -> Any:
        """The default; None where there is none."""
        return self.schema.get("default")

    @property
    def method(self) -> str:
        """The name as a part of a setter's."""
        return self.name[0].upper() + self.name[1:]

    @property
    def without(self) -> int | None:
        """A whole number that is not allowed though it is within the bounds."""
        found: int | None = self.schema.get("not", {}).get("const")
        return found

    @property
    def bounds(self) -> tuple[Any, Any, bool, bool]:
        """The least and the greatest number, and whether either is itself not allowed."""
        schema = self.schema
        low, high = schema.get("minimum"), schema.get("maximum")
        opens, closes = "exclusiveMinimum" in schema, "exclusiveMaximum" in schema
        return (
            schema["exclusiveMinimum"] if opens else low,
            schema["exclusiveMaximum"] if closes else high,
            opens,
            closes,
        )


@dataclass(frozen=True)
class Group:
    """Params that a trait has together."""

    name: str
    doc: str
    params: tuple[Declared, ...]

    @property
    def defaults(self) -> list[Declared]:
        """Those with a default."""
        return [param for param in self.params if param.default is not None]


def groups() -> list[Group]:
    """The groups in their order. Raises SystemExit for a param in none, or in two, and an expert one that is
    none.
    """
    schema = json.loads(SCHEMA.read_text())["$defs"]["TrainingParams"]
    properties, expert = schema["properties"], set(schema["x-expert"])
    found = [
        Group(
            one["name"],
            one["description"],
            tuple(Declared(name, properties[name], name in expert) for name in one["params"]),
        )
        for one in schema["x-groups"]
    ]
    names = [param.name for group in found for param in group.params]
    if sorted(names) != sorted(properties):
        raise SystemExit(f"not in one group each: {set(names) ^ set(properties) or sorted(names)}")
    if not expert <= set(names):
        raise SystemExit(f"expert params that there are not: {expert - set(names)}")
    return found


def wrapped(text: str, indent: int, width: int) -> list[str]:
    """A text in parts of at most that width, a space at the end of each but the last."""
    lines = textwrap.wrap(text, width - indent, break_on_hyphens=False, break_long_words=False)
    return [line + " " for line in lines[:-1]] + lines[-1:]


# Python


def python_kind(param: Declared) -> tuple[str, str]:
    """The type of a param's value, and what checks and converts it."""
    if param.name in PYTHON_KINDS:
        return PYTHON_KINDS[param.name]
    low, high, opens, closes = param.bounds
    if param.kind == "integer":
        if low is None:
            return "int", "Integer(-(2**63), 2**63 - 1)"
        ends = [f"{one:_d}" for one in (low, high) if one is not None]
        without = [] if param.without is None else [f"without={param.without}"]
        return "int", f"Integer({', '.join(ends + without)})"
    if param.kind == "number":
        ends = [f"{float(one):_}" for one in (low, high) if one is not None]
        flags = ["open_below=True"] * opens + ["open_above=True"] * closes
        return "float", f"Number({', '.join(ends + flags)})"
    if param.kind == "boolean":
        return "bool", "boolean"
    if "enum" in param.schema:
        return "str", f"one_of({', '.join(map(json.dumps, param.schema['enum']))})"
    if param.kind == "array":
        return "list[str]", "text_list"
    return "str", "text" if "minLength" in param.schema else "text_or_empty"


def python_param(param: Declared) -> Iterator[str]:
    kind, check = python_kind(param)
    yield f"    {param.name}: Param[{kind}] = Param("
    yield "        Params._dummy(),"
    yield f"        {json.dumps(param.name)},"
    parts = wrapped(param.doc, 11, 110)
    yield from (f"        {json.dumps(part)}" for part in parts[:-1])
    yield f"        {json.dumps(parts[-1])},"
    yield f"        {check},"
    yield "    )"
    yield ""


def python_taken(param: Declared) -> str:
    """The type of what a param can be set to."""
    return python_kind(param)[0] + PYTHON_ALSO.get(param.name, "")


def python_methods(param: Declared) -> Iterator[str]:
    kind, _ = python_kind(param)
    yield f"    def set{param.method}(self, value: {python_taken(param)} | None) -> Self:"
    yield f'        """Sets `{param.name}`; None unsets it."""'
    yield f"        return self._set({param.name}=value)"
    yield ""
    if param.name in SPARK:
        return
    if param.default is None:
        yield f"    def get{param.method}(self) -> {kind} | None:"
        yield f'        """The value of `{param.name}`, None when it is not set."""'
        yield f"        return self._value({json.dumps(param.name)})"
    else:
        yield f"    def get{param.method}(self) -> {kind}:"
        yield f'        """The value of `{param.name}`, or its default."""'
        yield f"        return self.getOrDefault(self.{param.name})"
    yield ""


def python_group(group: Group) -> Iterator[str]:
    bases = ["CheckedParams", *(SPARK[param.name] for param in group.params if param.name in SPARK)]
    yield ""
    yield f"class {group.name}({', '.join(bases)}):"
    yield f'    """{group.doc}"""'
    yield ""
    for param in group.params:
        yield from python_param(param)
    unset = [param.name for param in group.params if param.name in DEFAULT_OF_SPARK]
    if unset or group.defaults:
        yield "    def __init__(self, *args: Any) -> None:"
        yield "        super().__init__(*args)"
        for name in unset:
            yield "        # Spark's mixin has one, beside which others could not be set."
            yield f"        self._defaultParamMap.pop(self.{name}, None)"
        if group.defaults:
            values = ", ".join(f"{param.name}={param.default!r}" for param in group.defaults)
            yield f"        self._setDefault({values})"
        yield ""
    for param in group.params:
        yield from python_methods(param)


# The objects of Python's own, which are no part of the job: type, default and doc in the constructor.
OBJECTS = {
    "model": ("Any", "None", "The torch.nn.Module to train, or with runtime native the path of a program."),
    "loss": ("Any", "None", "A name, a torch.nn loss module, or a callable of outputs and labels."),
    "optimizer": ("Any", '"adam"', "A name, an optimizer of the module's parameters, or what makes one."),
    "metrics": ("Any", "None", "A list of names and callables, or a dict of them by name."),
    "lrScheduler": ("Any", "None", "A callable that makes torch's scheduler of the optimizer."),
    "lrSchedulerInterval": ("str", '"epoch"', "After what it takes a step: epoch or step."),
    "preprocess": ("Any", "None", "What makes the module's inputs of a flambeau.preprocessing.Batch."),
    "validationPreprocess": ("Any", "None", "In place of preprocess for rows that are validated or scored."),
    "preprocessThreads": ("int", "2", "In how many threads of each worker preprocess runs."),
    "callbacks": (
        "list[Callback] | None",
        "None",
        "Objects of flambeau.callbacks.Callback, called at the events of a training.",
    ),
    "runtime": ("str", '"auto"', "What runs the module: auto, python or native."),
}


def python_constructor(found: list[Group]) -> Iterator[str]:
    params = [param for group in found for param in group.params]
    yield ""
    yield "class EstimatorArguments(OtherNames, total=False):"
    yield '    """What `setParams` takes: every param; None unsets one."""'
    yield ""
    for name, (kind, _, _) in OBJECTS.items():
        yield f"    {name}: {kind}" + ("" if kind == "Any" or kind.endswith(" | None") else " | None")
    for param in params:
        yield f"    {param.name}: {python_taken(param)} | None"
    yield ""
    yield ""
    yield "class HasConstructor(CheckedParams):"
    yield '    """The constructor of the estimators."""'
    yield ""
    yield "    _input_kwargs: dict[str, Any]"
    yield ""
    yield "    @keyword_only"
    yield "    def __init__("
    yield "        self,"
    yield "        *,"
    for name, (kind, default, _) in OBJECTS.items():
        yield f"        {name}: {kind} = {default},"
    for param in params:
        kind = python_taken(param)
        optional = "" if param.default is not None else " | None"
        yield f"        {param.name}: {kind}{optional} = {param.default!r},"
    yield "        **others: Unpack[OtherNames],"
    yield "    ) -> None:"
    yield '        """Makes an estimator; all arguments are keywords.'
    yield ""
    yield "        Parameters"
    yield "        ----------"
    for name, (kind, default, doc) in OBJECTS.items():
        kind = kind.removesuffix(" | None") if kind != "Any" else "object"
        yield f"        {name} : {kind}, default {default.strip(chr(34))}"
        yield f"            {doc}"
    for param in params:
        kind = python_taken(param)
        default = "not set" if param.default is None else repr(param.default)
        yield f"        {param.name} : {kind}, default {default}{' (expert)' if param.is_expert else ''}"
        yield from (f"            {line.rstrip()}" for line in wrapped(param.doc, 12, 106))
    yield "        others"
    yield "            stepSize for learningRate, and Horovod's names: num_proc, feature_cols and the like."
    yield ""
    yield "        Raises ParamError for a name that there is not, and for a value that is not allowed."
    yield '        """'
    yield '        arguments = self.__dict__.pop("_input_kwargs")'
    yield "        super().__init__()"
    yield "        self.setParams(**arguments)"
    yield ""
    yield "    def setParams(self, **arguments: Unpack[EstimatorArguments]) -> Self:"
    yield '        """Sets params by the names that the constructor takes; None unsets one."""'
    yield "        return self._set(**resolve_arguments(self, arguments))"


def python(found: list[Group]) -> str:
    """The module with the params of Python."""
    params = [param for group in found for param in group.params]
    mixins = sorted(SPARK[param.name] for param in params if param.name in SPARK)
    checks = sorted({python_kind(param)[1].split("(")[0] for param in params})
    lines = [
        '"""The params of a training job, and the constructor that takes them all.',
        "",
        MADE,
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import TYPE_CHECKING, Any, Self, Unpack",
        "",
        "from pyspark import keyword_only",
        "from pyspark.ml.param import Param, Params",
        f"from pyspark.ml.param.shared import ({', '.join(mixins)},)",
        "",
        "from flambeau.params.arguments import OtherNames, resolve_arguments",
        f"from flambeau.params.converters import ({', '.join(checks)},)",
        "from flambeau.params.objects import CheckedParams",
        "",
        "if TYPE_CHECKING:",
        "    from pyspark.ml import Model",
        "",
        "    from flambeau.callbacks import Callback",
        "",
    ]
    for group in found:
        lines += python_group(group)
    lines += python_constructor(found)
    ruff = [str(Path(sys.executable).parent / "ruff"), "format", "--stdin-filename", str(PYTHON), "-"]
    text = "\n".join(lines) + "\n"
    return subprocess.run(
        ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT / "python"
    ).stdout


# Scala


def scala_check(param: Declared) -> str | None:
    """What checks a param's value; None where its type does."""
    if param.name in SCALA_KINDS:
        return f"Check.{SCALA_KINDS[param.name][2]}"
    low, high, opens, closes = param.bounds
    if param.kind == "integer":
        ends = ["Long.MinValue"] if low is None else [f"{one}" for one in (low, high) if one is not None]
        without = [] if param.without is None else [f"without = Some({param.without})"]
        return f"Check.Integer({', '.join(ends + without)})"
    if param.kind == "number":
        ends = [scala_number(one) for one in (low, high) if one is not None]
        flags = ["openBelow = true"] * opens + ["openAbove = true"] * closes
        return f"Check.Real({', '.join(ends + flags)})"
    if param.kind == "boolean":
        return None
    if "enum" in param.schema:
        return f"Check.OneOf({', '.join(map(json.dumps, param.schema['enum']))})"
    if param.kind == "array":
        return "Check.Columns"
    return "Check.Text" if "minLength" in param.schema else "Check.TextOrEmpty"


def scala_number(value: float) -> str:
    return str(float(value))


def scala_kind(param: Declared) -> tuple[str, str]:
    """The class of a param, and the type of its value."""
    if param.name in SCALA_KINDS:
        return SCALA_KINDS[param.name][:2]
    if param.kind == "integer":
        high = param.bounds[1]
        return ("IntParam", "Int") if high is not None and high <= INT_MAX else ("LongParam", "Long")
    return {
        "number": ("DoubleParam", "Double"),
        "boolean": ("BooleanParam", "Boolean"),
        "array": ("StringArrayParam", "Array[String]"),
        "string": ("Param[String]", "String"),
    }[param.kind]


def is_declared_in_scala(param: Declared) -> bool:
    """Whether Scala declares the param, and not Spark's trait."""
    return param.name not in SPARK


def scala_text(text: str, indent: int) -> list[str]:
    """A text as Scala's, in lines that are added up."""
    parts = wrapped(text, indent + 4, 106)
    first = " " * indent
    lines = [f"{first}{json.dumps(parts[0])}", *(f"{first}  {json.dumps(part)}" for part in parts[1:])]
    return [line + " +" for line in lines[:-1]] + lines[-1:]


def scala_doc(param: Declared, group: str, text: str = "") -> Iterator[str]:
    """A member's doc: a text, where it needs one, and the group that Spark ML puts such members into."""
    tag = f"@group {f'expert{group}' if param.is_expert else group[0].lower() + group[1:]}"
    if text:
        yield f"  /** {text}"
        yield "    *"
        yield f"    * {tag}"
        yield "    */"
    else:
        yield f"  /** {tag} */"


def scala_param(param: Declared) -> Iterator[str]:
    kind, value = scala_kind(param)
    if is_declared_in_scala(param):
        check = scala_check(param)
        doc = scala_text(param.doc, 4)
        yield from scala_doc(param, "Param")
        yield f"  final val {param.name}: {kind} = new {kind}("
        yield "    this,"
        yield f'    "{param.name}",'
        if check is None:
            yield from doc
        else:
            yield from doc[:-1]
            yield doc[-1] + ","
            yield f'    {check}.of("{param.name}")'
        yield "  )"
        yield ""
    if param.name in SCALA_ALSO:
        taken, other = SCALA_ALSO[param.name]
        yield from scala_doc(param, "SetParam", f"The same as `{other}`.")
        yield f"  def set{param.method}(value: {taken}): this.type = {other}(value)"
        yield ""
    yield from scala_doc(param, "SetParam", f"Sets `{param.name}`.")
    yield f"  def set{param.method}(value: {value}): this.type = setChecked({param.name}, value)"
    yield ""
    if is_declared_in_scala(param):
        told = "; NoSuchElementException where it is not set" if param.default is None else ", or its default"
        yield from scala_doc(param, "GetParam", f"The value of `{param.name}`{told}.")
        yield f"  def get{param.method}: {value} = $({param.name})"
        yield ""


def scala_default(param: Declared) -> str:
    suffix = "L" if scala_kind(param)[0] == "LongParam" else ""
    return json.dumps(param.default) + suffix


def scala_group(group: Group) -> Iterator[str]:
    params = group.params
    bases = [SPARK[param.name] for param in params if param.name in SPARK]
    yield ""
    yield f"/** {group.doc} */"
    head = f"trait {group.name} extends CheckedParams"
    one_line = head + "".join(f" with {base}" for base in bases) + " {"
    if len(one_line) <= 110:
        yield one_line
    else:
        yield f"trait {group.name}"
        yield "    extends CheckedParams"
        yield from (f"    with {base}" for base in bases[:-1])
        yield f"    with {bases[-1]} {{"
    yield ""
    for param in params:
        yield from scala_param(param)
    defaults = [f"{param.name} -> {scala_default(param)}" for param in params if param.default is not None]
    one_line = f"  setDefault({', '.join(defaults)})"
    if defaults and len(one_line) <= 110:
        yield one_line
    elif defaults:
        yield "  setDefault("
        yield from (f"    {one}," for one in defaults[:-1])
        yield f"    {defaults[-1]}"
        yield "  )"
    yield "}"


def scala(found: list[Group]) -> str:
    """The file with the params of Scala."""
    params = [param for group in found for param in group.params]
    ours = {scala_kind(param)[0].split("[")[0] for param in params if is_declared_in_scala(param)}
    kinds = sorted(ours - {"GroupsParam", "ShapesParam"})
    mixins = sorted(SPARK[param.name] for param in params if param.name in SPARK)
    lines = [
        "package flambeau",
        "",
        f"import org.apache.spark.ml.param.{{{', '.join(kinds)}}}",
        "import org.apache.spark.ml.param.shared.{",
        *(f"  {line.rstrip()}" for line in textwrap.wrap(", ".join(mixins), 108)),
        "}",
        "",
        f"// {MADE}",
    ]
    for group in found:
        lines += scala_group(group)
    return "\n".join(lines) + "\n"


def scala_shared(found: list[Group]) -> str:
    """The file with what Scala says of the params that Spark ML's own traits declare."""
    params = [param for group in found for param in group.params]
    lines = [
        "package flambeau",
        "",
        f"// {MADE}",
        "",
        "/** Docs and bounds of the params that Spark ML's own traits declare, which have others there. */",
        "private[flambeau] object SharedParams {",
        "",
        "  /** A param's doc, and the values that it takes. */",
        "  final case class Declaration(doc: String, check: Check)",
        "",
        "  /** By the params' names. */",
        "  val declarations: Map[String, Declaration] = Map(",
    ]
    shared = sorted((param for param in params if not is_declared_in_scala(param)), key=lambda one: one.name)
    for index, param in enumerate(shared):
        doc = scala_text(param.doc, 6)
        lines += [
            f'    "{param.name}" -> Declaration(',
            *doc[:-1],
            doc[-1] + ",",
            f"      {scala_check(param)}",
        ]
        lines.append("    )" + ("," if index + 1 < len(shared) else ""))
    lines += ["  )", "}"]
    return "\n".join(lines) + "\n"


# The page

HEAD = """# Params

Every param of the estimators that has a JSON value; `model`, `loss`, `optimizer`, `metrics` and Python's
`callbacks` and `runtime` are told of in [the guide](guide.md), `lrScheduler` and `lrSchedulerInterval` on
[the page about training code](training-code.md), `preprocess` and what belongs to it on
[another](preprocessing.md). This page is made from
[the schema of the training job](training-job.schema.json) by `make params`.
"""

EXPERT = """
## Expert params

Their defaults serve in all but special cases.
"""

TABLE = """
| param | default | allowed | what it is |
|---|---|---|---|"""


def page_bounds(schema: dict[str, Any]) -> str:
    """The range of a number in words, or the words there are; empty for other types."""
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    words = [f"{sign} {schema[key]:,.0f}" for key, sign in signs.items() if key in schema]
    return ", ".join(words)


def page(found: list[Group]) -> str:
    """The page with the tables of all params."""
    params = sorted((param for group in found for param in group.params), key=lambda one: one.name.lower())
    usual = page_rows(param for param in params if not param.is_expert)
    expert = page_rows(param for param in params if param.is_expert)
    return "\n".join([HEAD + TABLE, *usual, EXPERT + TABLE, *expert]) + "\n"


def page_rows(params: Iterable[Declared]) -> list[str]:
    """A row of the table for each param."""
    return [
        f"| `{param.name}` | {'' if param.default is None else f'`{json.dumps(param.default)}`'} | "
        f"{page_bounds(param.schema)} | {param.doc.replace('|', chr(92) + '|')} |"
        for param in params
    ]


def main() -> None:
    """Write the files, or compare them."""
    found = groups()
    made = {
        PAGE: page(found),
        PYTHON: python(found),
        SCALA: scala(found),
        SCALA_SHARED: scala_shared(found),
    }
    if "--check" not in sys.argv[1:]:
        for path, text in made.items():
            path.write_text(text)
        return
    stale = [str(path.relative_to(ROOT)) for path, text in made.items() if path.read_text() != text]
    if stale:
        raise SystemExit(f"not what the schema gives: {', '.join(stale)}; run `make params`")


if __name__ == "__main__":
    main()

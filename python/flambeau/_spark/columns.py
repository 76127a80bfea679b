"""From DataFrame columns to tensors: which columns make which tensor, of what type, and the Spark expressions
that convert them.

Training shards and `transform` go through the same expressions, so that a model scores what it was trained
on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, cast

from pyspark.ml.functions import vector_to_array
from pyspark.sql import functions as F

from flambeau._suggest import suggestion
from flambeau._tensors import TensorColumns
from flambeau.errors import DataError, ParamError

if TYPE_CHECKING:
    from pyspark.ml.param import Params
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

Role = Literal["input", "label", "weight", "raw"]
"""What a column is for; "raw" are those that `preprocess` gets."""

# What `raise_error` messages begin and end with, so that the driver finds them inside Spark's own text.
REFUSAL = "[FLAMBEAU_DATA] "
REFUSAL_END = " [/FLAMBEAU_DATA]"

_SQL_TYPES = {
    "float32": "float",
    "float64": "double",
    "int64": "bigint",
    "bool": "boolean",
    "uint8": "binary",
    "binary": "binary",
    "string": "string",
}
_FLOATS = ("float", "double", "decimal")
_INTEGERS = ("tinyint", "smallint", "int", "bigint", "byte", "short", "integer", "long")
_MENDS = {
    "string": "index it (StringIndexer) or cast it to a number",
    "date": "turn it into a number, for example with unix_date or datediff",
    "timestamp": "cast it to a number, for example with unix_timestamp",
    "timestamp_ntz": "cast it to a number, for example with unix_timestamp",
    "struct": "name its fields, as struct.field",
    "map": "select its values as columns of their own",
    "matrix": "turn it into an array of numbers and give its shape in inputShapes",
}


def resolve_inputs(schema: StructType, params: Params, arguments: Sequence[str] = ()) -> list[TensorColumns]:
    """The input tensors, in the order of forward's arguments, that the params ask for on a DataFrame of this
    schema. Where inputNames says which of the `arguments` each is for, theirs is the order; where they are
    not known, that of inputCols.

    Raises DataError for a column that is missing or of a type that no tensor is made of, and ParamError for
    names, shapes or types that do not fit their columns.
    """
    names, grouped, shapes, types = _described_inputs(params)
    named = _get(params, "inputNames")
    inputs = []
    for name, columns, shape, dtype in zip(named or names, grouped, shapes, types, strict=True):
        if dtype == "sparse":
            raise ParamError(
                f"inputTypes gives 'sparse' to input {name!r}, which preprocess gets so: set that, for "
                "example to flambeau.preprocessing.as_tensors"
            )
        tensor = resolve_tensor(schema, name, columns, None if dtype == "auto" else dtype, "input")
        inputs.append(_with_shape(tensor, shape))
    first = arguments[: len(inputs)]
    if not named or not arguments:
        return inputs
    if set(first) != set(named):
        raise ParamError(
            f"inputNames is {named}, but must name the first of forward's arguments, in any order: "
            f"{', '.join(arguments)}"
        )
    return [inputs[named.index(name)] for name in first]


def _described_inputs(
    params: Params,
) -> tuple[list[str], list[list[str]], Sequence[Sequence[int]], Sequence[str]]:
    """The inputs' names, and for each its columns, the shape and the type that the params give it."""
    names, grouped = _input_columns(params)
    shapes = _get(params, "inputShapes") or [[]] * len(grouped)
    types = _get(params, "inputTypes") or ["auto"] * len(grouped)
    named = _get(params, "inputNames") or names
    for name, given in (("inputNames", named), ("inputShapes", shapes), ("inputTypes", types)):
        if len(given) != len(grouped):
            raise ParamError(f"{name} has {len(given)} entries, and there are {len(grouped)} inputs: {names}")
    return names, grouped, shapes, types


def resolve_raw(schema: StructType, params: Params) -> list[TensorColumns]:
    """The columns that `preprocess` gets of a DataFrame of this schema, in the params' order, each by itself:
    of the types of tensors, or `string` and `binary`. Those of arrays have no shape where the params give
    none.

    Raises DataError for a column that is missing or of another type, and ParamError for inputNames, and for
    shapes or types that do not fit their columns.
    """
    if _get(params, "inputNames") is not None:
        raise ParamError(
            "inputNames is set (or inputCols is a dict), and preprocess makes forward's arguments: name the "
            "columns in inputCols alone, and return a dict of the arguments from preprocess"
        )
    found: list[TensorColumns] = []
    for _, columns, shape, dtype in zip(*_described_inputs(params), strict=True):
        for name in columns:
            field = find_field(schema, name, "input")
            kind = _element(field.dataType)
            if dtype == "sparse":
                _check_sparse(field)
                tensor = TensorColumns(name, (name,), dtype, _column_shape(field))
            elif kind in ("string", "binary") and dtype == "auto":
                known = () if nesting(field.dataType) == 0 else None
                tensor = TensorColumns(name, (name,), kind, known)
            else:
                tensor = resolve_tensor(schema, name, [name], None if dtype == "auto" else dtype, "input")
            if shape and tensor.dtype in ("string", "binary"):
                raise ParamError(
                    f"inputShapes gives {list(shape)} to column {name!r}, which is "
                    f"{type_name(field.dataType)} and reaches preprocess as it is: give it []"
                )
            tensor = _with_shape(tensor, shape if len(columns) == 1 else ())
            if tensor.dtype == "uint8" and tensor.shape is None:
                raise ParamError(
                    f"inputTypes gives 'uint8' to column {name!r}: give the shape of its bytes in "
                    "inputShapes, or 'auto', with which they reach preprocess as bytes"
                )
            if nesting(field.dataType) > 1 and tensor.shape is None:
                if tensor.dtype in ("string", "binary"):
                    raise ParamError(
                        f"column {name!r} is {type_name(field.dataType)}: flatten it, as nested arrays of "
                        f"{tensor.dtype} do not reach preprocess"
                    )
                raise ParamError(
                    f"column {name!r} is {type_name(field.dataType)}: give the shape of its arrays in "
                    "inputShapes; arrays of any length reach preprocess where they are not nested"
                )
            if name not in (one.name for one in found):
                found.append(tensor)
    return found


def column_names(params: Params) -> list[list[str]]:
    """The columns of each input that the params name."""
    return _input_columns(params)[1]


def resolve_tensor(
    schema: StructType, name: str, columns: Sequence[str], dtype: str | None, role: Role
) -> TensorColumns:
    """The tensor that these columns make; `dtype` None follows the columns' types.

    Raises DataError for a missing column or a type that no tensor is made of.
    """
    fields = [find_field(schema, column, role) for column in columns]
    shapes = {_column_shape(field) for field in fields}
    if len(columns) > 1 and shapes != {()}:
        wrong = next(field for field in fields if _column_shape(field) != ())
        raise DataError(
            f"column {wrong.name!r} is {type_name(wrong.dataType)}; columns that are packed into one "
            f"tensor are single numbers: give arrays and vectors as inputs of their own, in inputCols"
        )
    found = {_natural_dtype(field, role) for field in fields}
    if dtype is None:
        dtype = next(iter(found)) if len(found) == 1 else _common(found)
    for field in fields:
        _check_dtype(field, dtype, role)
    shape = (len(columns),) if len(columns) > 1 else shapes.pop()
    return TensorColumns(name, tuple(columns), dtype, shape)


def find_field(schema: StructType, column: str, role: str) -> StructField:
    """The schema's field of that name, or a DataError that lists what there is.

    `a.b` is a column of that name or, where there is none, the field `b` of the struct `a`, under that whole
    name.
    """
    for field in schema.fields:
        if field.name == column:
            return field
    if (path := _path_in(schema, column)) is not None:
        return _renamed(path[-1], column)
    names = schema.fieldNames()
    hint = suggestion(column, names)
    raise DataError(f"no column {column!r} for the {role}: the DataFrame has {', '.join(names)}{hint}")


def _path_in(schema: StructType, column: str) -> list[StructField] | None:
    """The fields, from the outermost on, that `a.b.c` leads through; None where it leads nowhere."""
    for field in schema.fields:
        if field.name == column:
            return [field]
        if column.startswith(f"{field.name}.") and field.dataType.typeName() == "struct":
            inner = _path_in(cast("StructType", field.dataType), column[len(field.name) + 1 :])
            if inner is not None:
                return [field, *inner]
    return None


def _renamed(field: StructField, name: str) -> StructField:
    """The field under another name."""
    return type(field)(name, field.dataType, field.nullable, field.metadata)


def column_of(schema: StructType, name: str) -> Column:
    """The column, or the struct's field, that `find_field` finds."""
    if name in schema.fieldNames():
        return F.col(quoted(name))
    path = _path_in(schema, name) or []
    return F.col(".".join(quoted(field.name) for field in path))


def type_name(dtype: DataType) -> str:
    """Spark's name of a type, as users write it: `string`, `array<float>`, `vector`."""
    name = type(dtype).__name__
    return name[: -len("UDT")].lower() if name.endswith("UDT") else dtype.simpleString()


def is_vector(dtype: DataType) -> bool:
    """Whether a column of this type holds Spark ML (or MLlib) vectors."""
    return type(dtype).__name__ == "VectorUDT"


def expressions(schema: StructType, tensor: TensorColumns, role: Role | None = None) -> list[Column]:
    """One Spark expression for each column of the tensor, cast to the tensor's type and named as the column.

    Vectors and arrays become arrays of that type. With a `role`, a row with a null, a label that is NaN or a
    weight that is not a finite number >= 0 fails the query, with a message that names the column.
    """
    return [
        _expression(column_of(schema, column), find_field(schema, column, role or "input"), tensor, role)
        for column in tensor.columns
    ]


def _expression(column: Column, field: StructField, tensor: TensorColumns, role: Role | None) -> Column:
    dtype, kind = tensor.dtype, _element(field.dataType)
    if dtype == "sparse":
        value = _sparse(column, field.name, is_vector(field.dataType))
    elif is_vector(field.dataType):
        wide = dtype in ("float64", "int64")
        value = vector_to_array(column, "float64" if wide else "float32")
        value = _cast_array(value, "double" if wide else "float", dtype, field.name)
    elif field.dataType.typeName() == "array":
        value = column
        for _ in range(nesting(field.dataType) - 1):
            value = F.flatten(value)
        value = _refuse_other_shapes(column, value, field, tensor.shape)
        value = _cast_array(value, kind, dtype, field.name)
    else:
        value = _cast(column, kind, dtype, field.name)
    if role is not None:
        value = _refuse_missing(column, value, field, tensor.dtype, role)
    return value.alias(field.name)


def _sparse(column: Column, name: str, of_vectors: bool) -> Column:
    """Vectors or arrays by the places of their values, in float32; of dense ones all are given."""
    vector = F.unwrap_udt(column) if of_vectors else None
    values = column if vector is None else vector["values"]
    if vector is None:
        text = f"{REFUSAL}column {name!r} holds an array with a null in it: drop those rows{REFUSAL_END}"
        has_null = F.exists(column, lambda item: item.isNull())
        values = F.when(has_null, F.raise_error(F.lit(text))).otherwise(column)
    size, places = F.size(values), F.transform(values, lambda _, place: place)
    if vector is not None:
        is_sparse = vector["type"] == 0
        size = F.when(is_sparse, vector["size"]).otherwise(size)
        places = F.when(is_sparse, vector["indices"]).otherwise(places)
    return F.struct(size.alias("size"), places.alias("indices"), values.cast("array<float>").alias("values"))


def _check_sparse(field: StructField) -> None:
    """Refuses a column that cannot become a sparse tensor."""
    kind = field.dataType
    if not is_vector(kind) and not (nesting(kind) == 1 and _element(kind) in (*_FLOATS, *_INTEGERS)):
        raise DataError(
            f"column {field.name!r} is {type_name(kind)}, and inputTypes gives 'sparse' to it, which is for "
            "vectors and arrays of numbers"
        )


def _cast(value: Column, kind: str, dtype: str, name: str) -> Column:
    """`value` cast to `dtype`; numbers with a fraction are refused where integers are asked for."""
    if dtype in ("int64", "bool") and kind in _FLOATS:
        message = F.concat(
            F.lit(f"{REFUSAL}column {name!r} holds "),
            value.cast("string"),
            F.lit(
                f", which is not a whole number, where {dtype} is asked for: round it, or ask for float32"
                f"{REFUSAL_END}"
            ),
        )
        # floor(NaN) is 0, and Spark's own equality holds NaN equal to itself.
        value = F.when(F.floor(value) != value, F.raise_error(message)).otherwise(value)
    return value.cast(_SQL_TYPES[dtype])


def _cast_array(value: Column, kind: str, dtype: str, name: str) -> Column:
    """An array's elements cast to `dtype`."""
    if dtype in ("int64", "bool") and kind in _FLOATS:
        return F.transform(value, lambda element: _cast(element, kind, dtype, name))
    return value.cast(f"array<{_SQL_TYPES[dtype]}>")


def _refuse_other_shapes(
    column: Column, value: Column, field: StructField, shape: tuple[int, ...] | None
) -> Column:
    """`value`, failing the query on nested arrays that are not of this shape; a shape of another number of
    dimensions is one for their numbers in their order.
    """
    if shape is None or len(shape) == 1 or len(shape) != nesting(field.dataType):
        return value

    def has(array: Column, sizes: tuple[int, ...]) -> Column:
        right = F.size(array) == sizes[0]
        return right & F.forall(array, lambda part: has(part, sizes[1:])) if len(sizes) > 1 else right

    message = f"{REFUSAL}column {field.name!r} holds an array that is not of shape {list(shape)}{REFUSAL_END}"
    return F.when(column.isNull() | has(column, shape), value).otherwise(F.raise_error(F.lit(message)))


def _refuse_missing(column: Column, value: Column, field: StructField, dtype: str, role: Role) -> Column:
    """`value`, failing the query on rows that no tensor can be made of."""

    def refusal(what: str) -> Column:
        return F.raise_error(F.lit(f"{REFUSAL}column {field.name!r} {what}{REFUSAL_END}"))

    mend = "fill it (Imputer, DataFrame.fillna) or drop those rows (DataFrame.dropna)"
    guarded = F.when(column.isNull(), refusal(f"holds a null: {mend}"))
    if role == "label" and dtype.startswith("float"):
        single = _column_shape(field) == () and not is_vector(field.dataType)
        nan = F.isnan(value) if single else F.exists(value, F.isnan)
        guarded = guarded.when(nan, refusal(f"is the label and holds a NaN: {mend}"))
    if role == "weight":
        wrong = F.isnan(value) | (value < 0) | (value == math.inf)
        guarded = guarded.when(
            wrong,
            refusal("is the weight and holds a value that is not a finite number >= 0: drop those rows"),
        )
    return guarded.otherwise(value)


def valid_rows(df: DataFrame, tensors: Iterable[TensorColumns], rule: str) -> DataFrame:
    """The rows of a DataFrame as `handleInvalid` has them: with "skip" those without a null or a NaN in the
    columns of these tensors, with "error" all, where one that has some fails the query with a message that
    names the column.
    """
    if rule == "keep":
        return df
    schema = df.schema
    verdicts = []
    for name in dict.fromkeys(name for tensor in tensors for name in tensor.columns):
        text = (
            f"column {name!r} holds a null or a NaN, and handleInvalid is 'error': fill it (Imputer, "
            "DataFrame.fillna), or set handleInvalid to 'skip', which leaves such rows out"
        )
        refusal = F.raise_error(F.lit(f"{REFUSAL}{text}{REFUSAL_END}"))
        is_invalid = _is_invalid(column_of(schema, name), find_field(schema, name, "input").dataType)
        verdicts.append(F.when(is_invalid, F.lit(False) if rule == "skip" else refusal.cast("boolean")))
    # One flat expression: a filter for each of a thousand columns would be a plan of a thousand operators.
    return df.where(F.coalesce(*verdicts, F.lit(True)))


def _is_invalid(column: Column, dtype: DataType) -> Column:
    """Whether a value is null, or holds a null or a NaN."""
    values = F.unwrap_udt(column)["values"] if is_vector(dtype) else column
    for _ in range(nesting(dtype) - 1):
        # Null where one of the arrays in it is.
        values = F.flatten(values)
    is_float = _element(dtype) in ("float", "double")
    if nesting(dtype) == 0 and not is_vector(dtype):
        return column.isNull() | F.isnan(column) if is_float else column.isNull()
    has_invalid = F.exists(values, lambda one: one.isNull() | F.isnan(one) if is_float else one.isNull())
    return column.isNull() | F.coalesce(has_invalid, F.lit(True))


def quoted(name: str) -> str:
    """A column's name as an expression that means this column, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def _input_columns(params: Params) -> tuple[list[str], list[list[str]]]:
    """The inputs' names and, for each, its columns."""
    columns, packed = _get(params, "inputCols"), _get(params, "featuresCols")
    if packed and params.isSet("featuresCol"):
        raise ParamError(
            f"featuresCol ({_get(params, 'featuresCol')!r}) and featuresCols ({packed}) are both set: "
            "set one of them to None"
        )
    if columns:
        return list(columns), [[column] for column in columns]
    if packed:
        return ["features"], [list(packed)]
    features = _get(params, "featuresCol")
    return [features], [[features]]


def _get(params: Params, name: str) -> Any:
    param = params.getParam(name)
    return params.getOrDefault(param) if params.isDefined(param) else None


def _with_shape(tensor: TensorColumns, shape: Sequence[int]) -> TensorColumns:
    """The tensor with the shape that inputShapes gives it; an empty one leaves it."""
    if not shape:
        return tensor
    if tensor.shape is not None and math.prod(tensor.shape) != math.prod(shape):
        raise ParamError(
            f"inputShapes gives {list(shape)} ({math.prod(shape)} numbers) to input {tensor.name!r}, "
            f"and its columns hold {math.prod(tensor.shape)} in a row"
        )
    return replace(tensor, shape=tuple(int(size) for size in shape))


def _column_shape(field: StructField) -> tuple[int, ...] | None:
    """() for a column of single numbers, (n,) where metadata says a vector's size, else None."""
    if is_vector(field.dataType):
        attributes = (field.metadata or {}).get("ml_attr", {})
        size = attributes.get("num_attrs", sum(len(group) for group in attributes.get("attrs", {}).values()))
        return (int(size),) if size else None
    return None if field.dataType.typeName() in ("array", "binary") else ()


def nesting(dtype: DataType) -> int:
    """How many arrays are nested in a type: 0 for one that is no array."""
    depth = 0
    while dtype.typeName() == "array":
        dtype = dtype.elementType  # type: ignore[attr-defined]
        depth += 1
    return depth


def _element(dtype: DataType) -> str:
    """The name of a type's innermost element, without a decimal's precision."""
    if is_vector(dtype):
        return "double"
    while dtype.typeName() == "array":
        dtype = dtype.elementType  # type: ignore[attr-defined]
    return dtype.typeName()


def _natural_dtype(field: StructField, role: Role) -> str:
    """The tensor type that a column gives when nothing else is asked for; refuses a type that gives none."""
    if is_vector(field.dataType):
        return "float32"
    kind = _element(field.dataType)
    nominal = (field.metadata or {}).get("ml_attr", {}).get("type") in ("nominal", "binary")
    if kind in _FLOATS:
        return "int64" if nominal else "float32"
    if kind in _INTEGERS:
        return "int64"
    if kind in ("boolean", "binary"):
        return {"boolean": "bool", "binary": "uint8"}[kind]
    name = type_name(field.dataType)
    mend = _MENDS.get(
        name, _MENDS.get(kind, "select columns of numbers, booleans, arrays of them, or vectors")
    )
    article = "an" if role == "input" else "a"
    raise DataError(f"column {field.name!r} is {name}, which cannot be {article} {role}: {mend}")


def _common(dtypes: set[str]) -> str:
    """The type that columns of different types are packed as."""
    return "int64" if dtypes <= {"int64", "bool"} else "float32"


def _check_dtype(field: StructField, dtype: str, role: Role) -> None:
    """Refuses a column that cannot become a tensor of `dtype`."""
    natural = _natural_dtype(field, role)
    if (natural == "uint8") != (dtype == "uint8"):
        raise DataError(
            f"column {field.name!r} is {type_name(field.dataType)}, which gives {natural} and cannot be read "
            f"as {dtype}"
        )

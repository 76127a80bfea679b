"""What `preprocess` makes of the first rows of a fit, before work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau._quiet import forked_rng
from flambeau._spark.rows.shards import DataColumns
from flambeau._spark.rows.sources import Rows
from flambeau.preprocessing import Batch, row_seeds

if TYPE_CHECKING:
    from torch import Tensor

    from flambeau._module.preprocessor import PreprocessSpec, ScoringPreprocess
    from flambeau._spark.fit.program import Program


@dataclass(frozen=True)
class PreprocessProbe:
    """What `preprocess` makes, and the module's inputs that the first rows give where they are scored."""

    spec: PreprocessSpec
    examples: Sequence[Tensor] = field(repr=False)
    scoring: ScoringPreprocess = field(repr=False)

    @classmethod
    def of(cls, program: Program, rows: Rows, columns: DataColumns, seed: int) -> PreprocessProbe:
        """Runs the functions of a program, for training and for validation, on the first rows. Raises
        DataError and ParamError for what they do not take, and return.
        """
        from flambeau._module.preprocessor import PreprocessSpec, ScoringPreprocess, pickled

        arrow = rows.first(columns)
        row_ids = list(range(arrow.num_rows))
        seeds = row_seeds(seed, 0, row_ids)
        batches = [
            Batch(arrow, columns.raw, is_training=True, row_ids=row_ids, seeds=seeds),
            Batch(arrow, columns.raw),
        ]
        functions = [program.objects["preprocess"], program.objects["validationPreprocess"]]
        with forked_rng():
            spec, examples = PreprocessSpec.found(program.module, functions, batches)
        return cls(spec, examples, ScoringPreprocess(pickled(functions[1]), spec))

"""What `preprocess` makes of the first rows of a fit, before work starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flambeau._spark.rows.sources import Rows
from flambeau._tensors import TensorColumns
from flambeau.preprocessing import Batch, row_seeds

if TYPE_CHECKING:
    from torch import Tensor

    from flambeau._module.preprocessor import Preprocessing, Scored
    from flambeau._spark.fit.program import Program


@dataclass(frozen=True)
class Made:
    """What `preprocess` makes, and the module's inputs that the first rows give where they are scored."""

    preprocessing: Preprocessing
    examples: Sequence[Tensor] = field(repr=False)
    scored: Scored = field(repr=False)

    @classmethod
    def of(cls, program: Program, rows: Rows, columns: Sequence[TensorColumns], seed: int) -> Made:
        """Runs the functions of a program, for training and for validation, on the first rows. Raises
        DataError and ParamError for what they do not take, and return.
        """
        from flambeau._module.preprocessor import Preprocessing, Scored, pickled

        arrow = rows.first(columns)
        row_ids = list(range(arrow.num_rows))
        seeds = row_seeds(seed, 0, row_ids)
        batches = [
            Batch(arrow, columns, is_training=True, row_ids=row_ids, seeds=seeds),
            Batch(arrow, columns),
        ]
        functions = [program.objects["preprocess"], program.objects["validationPreprocess"]]
        preprocessing, examples = Preprocessing.found(program.module, functions, batches)
        return cls(preprocessing, examples, Scored(pickled(functions[1]), preprocessing))

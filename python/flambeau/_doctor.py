"""`flambeau.doctor`: what a machine and a session have, and what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau._machine import machine_facts
from flambeau._reason import first_line
from flambeau._report import Fact, Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def doctor(
    spark: SparkSession | None = None, numWorkers: int | None = None, workDir: str | None = None
) -> Report:
    """What this machine has of what Flambeau needs, and what a session has, with what to do about each thing
    that is missing. Print the report, or have a notebook show it.

    Parameters
    ----------
    spark : a session, whose slots, workers and work directory are looked at too, by the checks that a fit
        begins with: one barrier stage of `numWorkers` tasks, which waits for free slots.
    numWorkers : the workers of a fit; where it is not given, as many as there are task slots.
    workDir : the work directory of a fit; where it is not given, that of `spark.flambeau.workDir`, or in
        local mode a temporary one.
    """
    facts = list(machine_facts())
    if spark is not None:
        try:
            from flambeau._spark.fit.preflight import session_facts

            facts += session_facts(spark, numWorkers, workDir)
        except Exception as error:
            remedy = "mend what is told above first; if all of that is well, the session does not answer"
            facts.append(Fact("session", first_line(error), remedy))
    return Report(facts)

"""What a machine and a session have and lack, as `flambeau doctor` tells it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flambeau._shown import page, table

State = Literal["ok", "missing", "optional"]


@dataclass(frozen=True)
class Fact:
    """One thing that was looked at.

    Attributes
    ----------
    name : what was looked at.
    found : what is there, or that it is not.
    remedy : what to do where something is missing, else None.
    isNeeded : whether a fit, or a transform, with the default params needs it.
    """

    name: str
    found: str
    remedy: str | None = None
    isNeeded: bool = True

    @property
    def state(self) -> State:
        """`ok` where nothing is missing, `missing` where something is that is needed, else `optional`."""
        if self.remedy is None:
            return "ok"
        return "missing" if self.isNeeded else "optional"

    @property
    def text(self) -> str:
        """What was found, and what to do."""
        return self.found if self.remedy is None else f"{self.found}: {self.remedy}"


@dataclass(frozen=True)
class Report:
    """What was found, one fact after the other; printed, one a line.

    Attributes
    ----------
    facts : the facts, those of the machine before those of the session.
    """

    facts: Sequence[Fact]

    @property
    def isWell(self) -> bool:
        """Whether nothing is missing that a fit with the default params needs."""
        return all(fact.state != "missing" for fact in self.facts)

    def toJson(self) -> str:
        """The report as JSON: `isWell`, and of each fact `name`, `state`, `found` and `remedy`."""
        names = ("name", "state", "found", "remedy")
        facts = [{name: getattr(fact, name) for name in names} for fact in self.facts]
        return json.dumps({"isWell": self.isWell, "facts": facts}, indent=2)

    def __str__(self) -> str:
        width = max((len(fact.name) for fact in self.facts), default=0)
        return "\n".join(f"{fact.state:8}  {fact.name:{width}}  {fact.text}" for fact in self.facts)

    def _repr_html_(self) -> str:
        """The report as a notebook shows it."""
        rows = [[fact.state, fact.name, fact.text] for fact in self.facts]
        return page("Doctor", [("", table(["", "", ""], rows))])

"""Print docs/params.md: every param of the estimators, from the schema of the training job."""

import json
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).resolve().parent.parent / "docs" / "training-job.schema.json"
HEAD = """# Params

Every param of the estimators that has a JSON value; `model`, `loss`, `optimizer` and `metrics` are told of in
[the guide](guide.md). This page is made from [the schema of the training job](training-job.schema.json) by
`make docs/params.md`.

| param | default | allowed | what it is |
|---|---|---|---|"""


def bounds(schema: dict[str, Any]) -> str:
    """The range of a number in words, or the words there are; empty for other types."""
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    words = [f"{sign} {schema[key]:,.0f}" for key, sign in signs.items() if key in schema]
    return ", ".join(words)


def row(name: str, schema: dict[str, Any]) -> str:
    """The table's line for one param."""
    default = schema.get("default")
    shown = "" if default is None else f"`{json.dumps(default)}`"
    description = " ".join(schema["description"].split()).replace("|", "\\|")
    return f"| `{name}` | {shown} | {bounds(schema)} | {description} |"


def main() -> None:
    """Print the page."""
    params = json.loads(SCHEMA.read_text())["$defs"]["TrainingParams"]["properties"]
    print("\n".join([HEAD, *(row(name, params[name]) for name in sorted(params, key=str.lower))]))


if __name__ == "__main__":
    main()

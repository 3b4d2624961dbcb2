"""The program `aws`, as far as pages use it: `aws SERVICE OPERATION --parameter value`, by botocore's own descriptions.

Amazon's command line is not among the packages of the tests. Values that are structures have to be JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import boto3
import jmespath  # type: ignore[import-untyped]
from botocore import xform_name

_SERVICES = {"s3api": "s3"}
_OWN_NAMES = {("sns", "subscribe", "--notification-endpoint"): "Endpoint"}  # --endpoint would be short for another


def main(arguments: list[str]) -> None:
    service, operation, *rest = arguments
    client = boto3.client(_SERVICES.get(service, service))
    model = next(
        client.meta.service_model.operation_model(name)
        for name in client.meta.service_model.operation_names
        if xform_name(name, "-") == operation
    )
    members = model.input_shape.members
    by_option = {f"--{xform_name(name, '-')}": name for name in members}
    given: dict[str, Any] = {}
    query, output = None, "json"
    for option, value in zip(rest[::2], rest[1::2], strict=True):
        if option == "--query":
            query = value
        elif option == "--output":
            output = value
        else:
            name = _OWN_NAMES.get((service, operation, option)) or by_option[option]
            given[name] = _value(members[name], value)
    answer = getattr(client, xform_name(model.name))(**given)
    answer.pop("ResponseMetadata", None)
    found = jmespath.search(query, answer) if query else answer
    sys.stdout.write(f"{found if output == 'text' else json.dumps(found, default=str, indent=4)}\n")


def _value(shape: Any, text: str) -> Any:
    if shape.type_name in ("structure", "map"):
        return json.loads(text)
    if shape.type_name == "list":
        return json.loads(text) if text.startswith("[") else text.split()
    return text


def install(programs: Path) -> None:
    """Make it a program of that folder."""
    command = programs / "aws"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    command.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m cuesqueue.requirements EXTRA...` prints what the package needs beside PySpark, a line each for pip.

For platforms that bring a Spark of their own: after `pip install --no-deps cuesqueue` only the standard library is
there, and this module needs no more. Whatever names PySpark is left out; the rest is as `pyproject.toml` declares it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from importlib.metadata import metadata

_EXTRA = re.compile(r"""\bextra\s*==\s*["']([\w.-]+)["']""")
_NAME = re.compile(r"[\w.-]+")
_OWN = re.compile(r"cuesqueue\[(.+)\]")


def requirements(extras: Sequence[str]) -> list[str]:
    """List the requirements of the installed package without PySpark, with those of these extras.

    Raises:
        ValueError: The package has no such extra.
    """
    declared = metadata("cuesqueue")
    available = declared.get_all("Provides-Extra", [])
    if unknown := sorted(set(extras) - set(available)):
        raise ValueError(f"no extra {', '.join(unknown)}; there are {', '.join(sorted(available))}")
    lines = []
    for line in declared.get_all("Requires-Dist", []):
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        extra = _EXTRA.search(marker)
        if extra and extra[1] not in extras:
            continue
        if own := _OWN.match(requirement):
            lines += [inner for inner in requirements(own[1].split(",")) if inner not in lines]
        elif _NAME.match(requirement)[0] != "pyspark":  # type: ignore[index]  # a requirement begins with its name
            lines.append(requirement)
    return list(dict.fromkeys(lines))


def main() -> None:
    try:
        lines = requirements(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"cuesqueue.requirements: {error}")
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main()

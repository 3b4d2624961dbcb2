"""A program `az` of the tests: it notes what it is asked for, and remembers what was made."""

from __future__ import annotations

import json
import sys
from pathlib import Path

RESOURCES = "/subscriptions/0/resourceGroups/data/providers/Microsoft.Storage/storageAccounts/"
_PROGRAM = f"""#!{sys.executable}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
state, words = here / "az-state.json", sys.argv[1:]
made = json.loads(state.read_text()) if state.exists() else []
with (here / "az-log.jsonl").open("a") as log:
    log.write(json.dumps(words) + "\\n")
name = words[words.index("--name") + 1] if "--name" in words else ""
thing = f"{{words[0]}} {{words[1]}} {{name}}"
if words[:3] == ["storage", "account", "show"]:
    print("{RESOURCES}" + name)
elif words[:2] == ["provider", "show"]:
    print("Registered" if "provider" in made else "NotRegistered")
elif words[2] == "exists":
    print("true" if thing in made else "false")
elif words[2] == "show":
    if thing not in made:
        sys.exit("ERROR: (ResourceNotFound) The event subscription was not found.")
elif (here / "az-broken").exists():
    sys.exit("ERROR: (AuthorizationFailed) The client does not have authorization. https://x/?sig=secret")
else:
    made.append("provider" if words[0] == "provider" else thing)
    state.write_text(json.dumps(made))
"""


class AzureCommand:
    """The program, in a folder that is on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = folder / "az"
        program.write_text(_PROGRAM)
        program.chmod(0o755)

    def made(self, *things: str) -> None:
        """These are there already."""
        (self.folder / "az-state.json").write_text(json.dumps(things))

    def breaks(self) -> None:
        """From now on nothing can be made."""
        (self.folder / "az-broken").touch()

    def changes(self) -> list[list[str]]:
        """The arguments of the commands that change something, since the last call."""
        log = self.folder / "az-log.jsonl"
        calls = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        log.unlink(missing_ok=True)
        return [words for words in calls if not {"show", "exists"} & set(words[1:3])]

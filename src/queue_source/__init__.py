"""The Spark source, sink and commands of cuesqueue. Users import the package `cuesqueue`.

Modules that earlier versions had here are found in `old_paths`, so that scripts which import them go on working.
"""

from pathlib import Path

__path__.append(str(Path(__file__).with_name("old_paths")))

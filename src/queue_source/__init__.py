"""The Spark source, sink and commands of cuesqueue. Users import the package `cuesqueue`.

`old_paths` holds modules under the names of earlier versions, so that scripts which import them continue to work.
"""

from pathlib import Path

__path__.append(str(Path(__file__).with_name("old_paths")))

"""What a warm process of Spark has loaded is left alone by the collector of cycles, wherever a batch is worked on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from queue_source.spark import reader as reader_module
from queue_source.spark import writer as writer_module
from support.crash_sweep import run
from support.sweep_sinks import Cell


def test_what_is_loaded_is_frozen_once_in_a_process_and_later_garbage_is_collected() -> None:
    program = """if True:
        import gc, weakref
        from queue_source.spark.process import keep_loaded

        class Cycle:
            def __init__(self):
                self.itself = self

        before = gc.get_freeze_count()
        keep_loaded()
        frozen = gc.get_freeze_count()
        later = weakref.ref(Cycle())
        keep_loaded()
        gc.collect()
        print(frozen - before > 10_000, gc.get_freeze_count() == frozen, later() is None)
    """
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "True True True\n"


def test_each_process_of_a_batch_freezes_what_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = set()
    for module in (reader_module, writer_module):
        monkeypatch.setattr(module, "keep_loaded", lambda: callers.add(sys._getframe(1).f_code.co_name))
    cell = Cell("path", tmp_path, f"sqlite:///{tmp_path}/store.db", f"sqlite:///{tmp_path}/elsewhere.db")
    cell.prepare()
    assert run(cell).failed is None
    assert callers == {"read", "write", "commit", "__getstate__"}

"""`make integration` ends with what was skipped and why (`-ra` of pyproject.toml), and with how long each file took."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds of each file")
    for file, took in seconds.most_common():
        terminalreporter.write_line(f"{took:7.0f} {file}")

"""`make integration` ends with what was skipped and why (`-ra` of pyproject.toml), and with how long each file took."""

from __future__ import annotations

from collections import defaultdict

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds of each file")
    for file, took in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{took:7.0f} {file}")

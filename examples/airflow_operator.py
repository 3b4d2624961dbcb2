"""A task of Airflow that loads what a queue announces, and is tried again only where that can help.

Copy this file into the folder of DAGs. It imports from Airflow as of 3.2; before, `AirflowFailException` is in
`airflow.exceptions`, and in Airflow 2 `BaseOperator` is in `airflow.models`.

    with DAG("orders", schedule="*/10 * * * *", catchup=False, max_active_runs=1):  # which keeps two loads apart
        CuesqueueLoad(
            task_id="load",
            arguments=["sqs://orders", "--prefix", "s3://landing/orders/", "--format", "json", "--path", "s3://lake/orders"],
            env={"CUESQUEUE_STORE": "{{ var.value.cuesqueue_store }}"},
            retries=3,
        )
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException


class CuesqueueLoad(BaseOperator):  # type: ignore[misc]  # Airflow is not installed where this is checked
    """Runs `cuesqueue load` with these arguments, `program` being the command, and `env` added to the environment."""

    template_fields: Sequence[str] = ("arguments", "env")
    process: subprocess.Popen[str] | None = None
    FINAL: ClassVar = {2, 3}  # wrong options, and more errors than --max-errors: somebody has to look

    def __init__(
        self,
        *,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        program: str = "cuesqueue",
        **keywords: Any,
    ) -> None:
        super().__init__(**keywords)
        self.arguments, self.env, self.program = arguments, env, program

    def execute(self, context: Any) -> None:
        """Succeed if the load does; else raise what Airflow tries again, or what it does not."""
        line, environment = "", os.environ | dict(self.env or {})
        command = [self.program, "load", *self.arguments]
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with self.process:
            for text in self.process.stdout or ():
                line = text.rstrip()
                self.log.info("%s", line)
        code = self.process.returncode
        if code in self.FINAL:
            raise AirflowFailException(f"cuesqueue load ended with {code}: {line}")
        if code:
            raise RuntimeError(f"cuesqueue load ended with {code}; the next try goes on where it stopped: {line}")

    def on_kill(self) -> None:
        """Let the load close what is open; it then ends with 143."""
        if self.process:
            self.process.terminate()

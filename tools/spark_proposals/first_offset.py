import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
with tempfile.TemporaryDirectory() as folder:
    offsets = Path(folder) / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.cut-off.tmp").touch()
    (Path(folder) / "in").mkdir()
    (Path(folder) / "in" / "one.json").write_text('{"id": 1}')
    rows = spark.readStream.schema("id BIGINT").json(f"{folder}/in").writeStream.format("parquet")
    rows = rows.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    for check in ("true", "false"):
        spark.conf.set("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", check)
        try:
            rows.start(f"{folder}/out").awaitTermination()
            print(f"check={check}: {spark.read.parquet(f'{folder}/out').count()} row")
        except StreamingQueryException as error:
            print(f"check={check}: {str(error).splitlines()[0][-120:]}")

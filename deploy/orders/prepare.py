"""Make the bucket, the queue, and the notification of the one to the other; or, with a number, put so many orders.

docker compose exec reader python3 /opt/orders/prepare.py 100
"""

import json
import random
import subprocess
import sys
import time
import uuid

import boto3
from botocore.exceptions import BotoCoreError

BUCKET, PREFIX, QUEUE = "landing", "orders/", "orders"


def prepare() -> None:
    """Wait for the server, and set everything up; what exists already stays as it is."""
    for attempt in range(30):
        try:
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            break
        except BotoCoreError:
            if attempt == 29:
                raise
            time.sleep(1)
    subprocess.run(["cuesqueue", "setup", "aws", f"s3://{BUCKET}/{PREFIX}", "--queue", QUEUE], check=True)


def put(count: int) -> None:
    """Put orders into the bucket, an object each."""
    s3 = boto3.client("s3")
    for _ in range(count):
        order = {"id": str(uuid.uuid4()), "total": round(random.uniform(5, 500), 2)}
        s3.put_object(Bucket=BUCKET, Key=f"{PREFIX}{order['id']}.json", Body=json.dumps(order).encode())


if __name__ == "__main__":
    put(int(sys.argv[1])) if len(sys.argv) > 1 else prepare()

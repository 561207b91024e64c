"""An object store on this machine, and how to reach it: as S3, with keys that are none."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "clicks"


class ObjectStore:
    """A server of S3's protocol with one bucket.

    Args:
        server: The server, which runs.
    """

    def __init__(self, server: ThreadedMotoServer) -> None:
        host, port = server.get_host_and_port()
        self.address = f"{host}:{port}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": f"http://{self.address}",
        }
        self._client: Any = boto3.client(
            "s3",
            region_name="us-east-1",
            endpoint_url=f"http://{self.address}",
            aws_access_key_id="nobody",
            aws_secret_access_key="nothing",
        )
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, path: Path, key: str) -> str:
        """Copy a file, or the files below a folder, to a key, or below it; gives its URI."""
        for file in [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]:
            inside = key if path.is_file() else f"{key}/{file.relative_to(path)}"
            self._client.put_object(Bucket=BUCKET, Key=inside, Body=file.read_bytes())
        return f"s3://{BUCKET}/{key}"

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """A store that lasts for a while."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    store = ObjectStore(server)
    proxies = {name: os.environ.pop(name) for name in [*os.environ] if name.lower().endswith("_proxy")}
    try:
        yield store
    finally:
        os.environ.update(proxies)
        store.close()
        server.stop()

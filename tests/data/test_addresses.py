"""Addresses in messages and records: no address shows its secrets."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsegroup.addresses import public_address, without_secrets
from sparsegroup.data import open_log
from sparsegroup.data.raw.files import short_name
from sparsegroup.publishing import open_destination
from sparsegroup.streaming.sources import open_source
from sparsegroup.streaming.watch import post_warnings
from sparsegroup.training import Config

SIGNS = "/?#@:&=%+ "
cores = st.text("QWXYZ0123456789", min_size=6, max_size=10)
secrets = st.builds(lambda first, sign, second: (first, f"{first}{sign}{second}"), cores, st.sampled_from(SIGNS), cores)
"""A secret, and a part of it that must not be shown either."""
parameters = st.sampled_from(["password", "sig", "X-Amz-Signature", "sasl.password", "token", "secret_key"])


@given(
    st.sampled_from(["redis", "rediss", "s3", "gs", "kafka", "https", "memory", "filecache::s3", "abfs"]),
    st.sampled_from(["", "me", "AKIA"]),
    secrets,
    secrets,
    parameters,
    st.booleans(),
)
def test_no_part_of_a_password_or_of_a_parameter_is_shown(
    scheme: str, user: str, password: tuple[str, str], value: tuple[str, str], name: str, is_webhook: bool
) -> None:
    address = f"{scheme}://{user}:{password[1]}@host.example/0/clicks?region=here&{name}={value[1]}"
    shown = public_address(address, has_public_path=not is_webhook)
    message = without_secrets(f"cannot open {address!r}: {password[0]}, {value[1]}?", address)
    for text in (shown, message):
        assert password[0] not in text
        assert value[0] not in text
    assert shown.startswith(f"{scheme}://")
    if "@" not in value[1]:
        assert "host.example" in shown or any(sign in password[1] for sign in "?#/@")


@given(secrets)
def test_a_webhook_shows_its_host_only(secret: tuple[str, str]) -> None:
    address = f"https://hooks.example.com/services/T0/{secret[1]}"
    assert secret[0] not in public_address(address, has_public_path=False)
    assert secret[0] not in without_secrets(f"no {secret[1]} here", address, has_public_path=False)
    assert secret[0] not in public_address(f"hooks.example.com/{secret[1]}", has_public_path=False)


@pytest.mark.parametrize(
    "address",
    [
        "logs/2026-?.csv",
        "s3://bucket/day=*/",
        "s3://bucket/me@home/x?region=eu-west-1&endpoint_override=localhost:9000",
        "redis://host:6379/0/clicks",
        "kafka://a:9092,b:9092/topic",
        "abfss://container@account.dfs.core.windows.net/logs",
        "file:///data/log.csv",
    ],
)
def test_an_address_without_secrets_is_shown_unchanged(address: str) -> None:
    assert public_address(address) == address


PASSWORDS = [f"s3cret{sign}h1dden" for sign in ("", "/", "@", "?", "#", ":", "%2F")]
SECRETS = ("s3cret", "h1dden", "t0ken")


def shown_by(action: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> str:
    """Return all output of a call that a user sees."""
    with caplog.at_level(logging.DEBUG, "sparsegroup"):
        try:
            result = str(action())
        except (ValueError, OSError, ImportError) as error:
            result = str(error) + str(getattr(error, "filename", ""))
    return result + caplog.text


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_place_that_takes_an_address_shows_its_password(
    password: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis, query = f"redis://:{password}@127.0.0.1:1/0/clicks", "?password=t0ken"
    s3 = f"s3://AKIA:{password}@bucket/x?region=us-east-1&endpoint_override=localhost:1&secret=t0ken"
    actions: list[Callable[[], Any]] = [
        lambda: open_destination(redis).releases(),
        lambda: open_destination(redis + query).name,
        lambda: open_destination(s3).name,
        lambda: open_destination(f"nosuch://me:{password}@host/x").name,
        lambda: open_source(redis + query).name,
        lambda: open_source([redis, "a.csv"]).name,
        lambda: open_source(f"redis://:{password}@127.0.0.1:1").name,
        lambda: open_source(f"kafka://me:{password}@host:9092/clicks?sasl.password=t0ken&nosuch=t0ken").name,
        lambda: open_source(s3).name,
        lambda: open_log(s3),
        lambda: open_log(f"nosuch://me:{password}@host/x.csv"),
        lambda: open_log(f"filecache::s3://AKIA:{password}@bucket/x.csv"),
        lambda: short_name(f"s3://AKIA:{password}@bucket"),
        lambda: post_warnings(f"http://127.0.0.1:1/services/{password}", tmp_path, ["w"]),
        lambda: post_warnings(f"http://127.0.0.1:1/services/{password} h1dden", tmp_path, ["w"]),
        lambda: post_warnings(f"127.0.0.1:1/services/{password}", tmp_path, ["w"]),
        lambda: Config.of(log=[s3, s3 + "y"], test=s3, mlflow=f"http://me:{password}@host").as_yaml(),
        lambda: json.dumps(Config.of(log=s3).as_dict()),
    ]
    for number, action in enumerate(actions):
        text = shown_by(action, caplog)
        assert not [secret for secret in SECRETS if secret in text], (number, text)


def test_settings_keep_the_address_that_they_were_given() -> None:
    config = Config.of(log="s3://AKIA:h1dden@bucket/x").replace(batch_size=64)
    assert config.data.log == "s3://AKIA:h1dden@bucket/x"

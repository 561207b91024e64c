"""Addresses of files, stores, brokers and web services, without their secrets, for messages and records."""

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote, unquote_plus

HIDDEN = "…"
"""Text in place of a secret."""

_ADDRESS = re.compile(r"([^/]*?)://(.*)", re.DOTALL)
_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes that have the name of a container in place of a user."""
_PUBLIC = (
    "region", "scheme", "endpoint_override", "anonymous", "allow_bucket_creation", "allow_bucket_deletion",
    "force_virtual_addressing", "tls_ca_file_path", "project_id", "retry_limit_seconds", "replication", "buffer_size",
    "blob_storage_authority", "dfs_storage_authority", "blob_storage_scheme", "dfs_storage_scheme", "enable_tls",
    "group", "lost", "stream",
)  # fmt: skip
"""Query parameters, of pyarrow and of this package, that are not secret."""


def public_address(address: str, *, has_public_path: bool = True) -> str:
    """Return an address without user, password, fragment and unknown parameters; a path on a disk is unchanged.

    A password may hold `/`, `?`, `#` and `@`, although an address must encode these signs. Every part that could
    belong to such a password is hidden.

    Args:
        address: A path, or an address with a scheme.
        has_public_path: Whether to show the path. The path of a webhook is a secret.

    Examples:
        >>> public_address("redis://:pa@ss@host:6379/0/clicks?password=x")
        'redis://host:6379/0/clicks'
        >>> public_address("s3://KEY:SEC/RET@bucket/day=*/?region=eu-west-1")
        's3://bucket/day=*/?region=eu-west-1'
        >>> public_address("https://hooks.example.com/services/T0/B0/SECRET", has_public_path=False)
        'https://hooks.example.com/…'
        >>> public_address("logs/2026-?.csv")
        'logs/2026-?.csv'
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        return address if has_public_path else HIDDEN
    scheme, rest = parts.groups()
    begin, end = _public_part(rest)
    shown = rest[begin:end]
    if not has_public_path:
        host = "" if is_unclear(address) else shown.partition("/")[0]
        shown = host and f"{host}/{HIDDEN}"
    elif rest[end : end + 1] == "?" and shown:
        public = [f"{name}={value}" for name, value in _parameters(rest[end:]) if name in _PUBLIC and "@" not in value]
        shown += "?" * bool(public) + "&".join(public)
    user = rest[: max(begin - 1, 0)]
    if scheme in _CONTAINERS and re.fullmatch(r"[\w-]+", user):
        shown = f"{user}@{shown}"
    return f"{scheme}://{shown or HIDDEN}"


UNCLEAR = "write the signs / ? # @ of a user, a password or a path as %2F %3F %23 %40"
"""Advice about an address that `is_unclear`."""


def is_unclear(address: str) -> bool:
    """Return whether an `@` follows the host and port, which may then be the beginning of a password."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        return False
    authority = parts[2][: _first(parts[2], "/?#")]
    return (":" in authority or "@" in authority) and parts[2].rfind("@") >= len(authority)


def without_secrets(message: object, *addresses: str, has_public_path: bool = True) -> str:
    """Return another library's message about some addresses, without the secrets of the addresses.

    Args:
        message: The text, or an exception.
        *addresses: See `public_address`; paths on a disk have no secrets.
        has_public_path: See `public_address`.

    Examples:
        >>> without_secrets("Cannot parse 's3://KEY:SEC'", "s3://KEY:SEC/RET@bucket")
        "Cannot parse 's3://…:…'"
    """
    text, addresses = str(message), tuple(filter(None, addresses))
    for address in addresses:
        text = text.replace(address, public_address(address, has_public_path=has_public_path))
    secrets = {secret for address in addresses for secret in _secrets(address, has_public_path)}
    for secret in sorted(secrets, key=len, reverse=True):
        is_long = len(secret) >= 6
        word = re.escape(secret) if is_long else rf"(?<![^\W_]){re.escape(secret)}(?![^\W_])"
        text = re.sub(word, HIDDEN, text)
    return text


def _public_part(rest: str) -> tuple[int, int]:
    """Return the start and end of host and path in an address without scheme. The end may be before the start."""
    authority = rest[: _first(rest, "/?#")]
    begin = authority.rfind("@") + 1
    end = _first(rest, "?#", begin)
    if ":" in authority or "@" in authority:  # the signs after it may belong to a password, see `is_unclear`
        last = rest.rfind("@") + 1
        begin, end = last, min(end, _first(rest, "?#", last))
    return begin, end


def _first(text: str, signs: str, begin: int = 0) -> int:
    return min((place for sign in signs if (place := text.find(sign, begin)) >= 0), default=len(text))


def _parameters(query: str) -> Iterator[tuple[str, str]]:
    for part in query.lstrip("?").partition("#")[0].split("&"):
        name, _, value = part.partition("=")
        yield name, value


def _secrets(address: str, has_public_path: bool) -> Iterator[str]:
    """Return the secret texts in an address, both encoded and decoded."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None and has_public_path:
        return
    rest = address if parts is None else parts[2]
    begin, end = _public_part(rest)
    hidden = [rest] if begin > end else [rest[: max(begin - 1, 0)]]
    hidden += [] if has_public_path else [rest.partition("/")[2]]
    hidden += [value for name, value in _parameters(rest[end:]) if name not in _PUBLIC]
    hidden += [rest[end:].partition("#")[2]]
    for secret in hidden:
        for form in {secret, unquote(secret), unquote_plus(secret), quote(secret, safe="")}:
            yield from (piece for piece in (form, *re.split(r"[:/?#@&=%+ ]", form)) if piece)

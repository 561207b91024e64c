"""Words in the names of columns, lower case, and what they say of whole numbers in them."""

# fmt: off
THINGS = frozenset({
    "id", "ids", "uid", "uuid", "guid", "key", "hash", "code", "zip", "zipcode", "postcode", "postal", "sku", "isbn",
    "token", "session", "cookie", "ip", "user", "member", "account", "customer", "visitor", "item", "article",
    "product", "ad", "campaign", "creative", "advertiser", "publisher", "merchant", "brand", "shop", "site", "domain",
    "app", "device", "model", "query", "document", "news", "video", "song", "movie", "page", "channel", "slot",
    "country", "region", "city", "category", "type",
})
"""They stand for things,"""

AMOUNTS = frozenset({
    "n", "num", "number", "count", "counts", "total", "sum", "size", "length", "width", "height", "price", "cost",
    "amount", "age", "days", "hours", "minutes", "seconds", "duration", "distance", "avg", "mean", "rate", "ratio",
    "share", "score", "rank", "position", "views", "clicks",
})
"""unless one of these is there, too."""

TIMES = frozenset({
    "ts", "time", "times", "timestamp", "date", "datetime", "dt", "at", "created", "updated", "clicked", "served",
    "requested", "when", "epoch", "unixtime",
})
"""They are times, if they are large enough."""

CYCLES = frozenset({"hour", "hr", "minute", "weekday", "dow", "wday"})
"""They come again soon."""

WEIGHTS = (
    "sample_weight", "sample_weights", "row_weight", "example_weight", "instance_weight", "importance_weight",
    "importance_weights", "weight", "weights", "importance",
)
"""Names of a column that is how much a row counts, whole and in any case; the first one that is there."""
# fmt: on

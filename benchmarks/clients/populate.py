"""Put small objects under the names that come on standard input."""

from __future__ import annotations

import json
import sys

import s3dlio

if __name__ == "__main__":
    s3dlio.put_many([(uri, b"x") for uri in json.load(sys.stdin)], max_in_flight=16)

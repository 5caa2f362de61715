"""Every async name: the blocking verb, run in a thread. Real coroutines, for any running loop."""

from __future__ import annotations

from . import buckets, bulk, objects
from .runtime import twin

__all__ = [
    "create_bucket_async",
    "delete_async",
    "delete_bucket_async",
    "exists_async",
    "get_async",
    "get_many_async",
    "get_object_async",
    "get_range_async",
    "list_async",
    "list_full_uris_async",
    "list_keys_async",
    "mkdir_async",
    "put_bytes_async",
    "put_many_async",
    "stat_async",
    "stat_many_async",
    "stat_object_async",
]

create_bucket_async = twin(buckets.create_bucket)
delete_bucket_async = twin(buckets.delete_bucket)
delete_async = twin(objects.delete)
exists_async = twin(objects.exists)
get_async = twin(objects.get)
get_many_async = twin(bulk.get_many)
get_object_async = twin(objects.get_object)
get_range_async = twin(objects.get_range)
list_async = twin(objects.list)
list_full_uris_async = twin(objects.list_full_uris)
list_keys_async = twin(objects.list_keys)
mkdir_async = twin(objects.mkdir)
put_bytes_async = twin(objects.put_bytes)
put_many_async = twin(bulk.put_many)
stat_async = twin(objects.stat)
stat_many_async = twin(bulk.stat_many)
stat_object_async = twin(objects.stat_object)

"""s3dlio: the storage layer of training jobs. One import for `s3://`, `file://`, `direct://` and `memory://`.

get, get_range, put_bytes, list, stat, exists, delete, mkdir work on one URI, get_many, put_many, stat_many on many; each has
an `_async` twin. open_writer and open_reader are files for `torch.save` and `torch.load`. ObjectStoreMapDataset and
ObjectStoreIterableDataset feed a DataLoader, `s3dlio.torch.loader` one that resumes. configure_s3 says where `s3://` is.

Every public name is here and is loaded when it is first used, so that importing the package costs a millisecond and
loads neither numpy nor a framework nor an SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .loading import gate as _gate

__version__ = "1.0.0.dev0"

if TYPE_CHECKING:
    from .aio import (
        create_bucket_async,
        delete_async,
        delete_bucket_async,
        exists_async,
        get_async,
        get_many_async,
        get_object_async,
        get_range_async,
        list_async,
        list_full_uris_async,
        list_keys_async,
        mkdir_async,
        put_bytes_async,
        put_many_async,
        stat_async,
        stat_many_async,
        stat_object_async,
    )
    from .buckets import configure_s3, create_bucket, delete_bucket
    from .bulk import get_many, put_many, stat_many
    from .checkpoint.catalog import CheckpointInfo, delete_checkpoint, latest_checkpoint, list_checkpoints
    from .checkpoint.retention import keep_last
    from .data.bad_samples import BadSampleWarning
    from .data.dataset import PyDataset
    from .data.iterators import PyObjectDataLoaderSyncIter
    from .data.npy import load_npy, read_npy
    from .data.npz import generate_npz_bytes, load_npz, read_npz
    from .data.parquet import create_async_loader
    from .data.parquet_lookup import (
        PyParquetIndex,
        configure_tokio_threads,
        parquet_cache_clear,
        parquet_cache_invalidate,
        parquet_cache_len,
        parquet_get_rg,
        parquet_rg_row_offsets,
    )
    from .data.stream import PyBytesAsyncDataLoader
    from .data.tar import TarFile, TarReader, TarSampleReader, create_tar_index
    from .data.tfrecord import TFRecordFile, TFRecordReader, create_tfrecord_index
    from .data.window import ShuffleWindow
    from .errors import (
        AccessDeniedError,
        ChangedError,
        ConfigError,
        CorruptDataError,
        IncompleteReadError,
        MissingPackageError,
        NotEmptyError,
        NotFoundError,
        OutOfSpaceError,
        PreconditionFailedError,
        S3dlioError,
        ThrottledError,
        UnsafePickleError,
        UnsupportedError,
    )
    from .objects import (
        delete,
        exists,
        get,
        get_object,
        get_range,
        init_logging,
        list,
        list_full_uris,
        list_keys,
        mkdir,
        open_reader,
        open_writer,
        put_bytes,
        stat,
        stat_object,
    )
    from .torch import ObjectStoreIterableDataset, ObjectStoreMapDataset
    from .torch.checkpoint import (
        finalize_distributed_checkpoint,
        load_checkpoint,
        load_checkpoint_with_validation,
        load_distributed_shard,
        save_checkpoint,
        save_distributed_shard,
    )
    from .view import BytesView
    from .view import BytesView as PyBytesView
    from .view import BytesView as PyObjectItem
    from .writers import (
        PyWriterOptions,
        create_azure_writer,
        create_direct_filesystem_writer,
        create_filesystem_writer,
        create_gcs_writer,
        create_s3_writer,
    )

_VERBS = (
    *("delete", "exists", "get", "get_object", "get_range", "list", "list_full_uris", "list_keys", "mkdir"),
    *("put_bytes", "stat", "stat_object"),
)
_BULK_VERBS = ("get_many", "put_many", "stat_many")
_MODULES = {
    "objects": (*_VERBS, "init_logging", "open_reader", "open_writer"),
    "buckets": ("configure_s3", "create_bucket", "delete_bucket"),
    "bulk": _BULK_VERBS,
    "aio": tuple(f"{verb}_async" for verb in (*_VERBS, *_BULK_VERBS, "create_bucket", "delete_bucket")),
    "writers": (
        *("PyWriterOptions", "create_azure_writer", "create_direct_filesystem_writer", "create_filesystem_writer"),
        *("create_gcs_writer", "create_s3_writer"),
    ),
    "view": ("BytesView", "PyBytesView", "PyObjectItem"),
    "errors": (
        *("AccessDeniedError", "ChangedError", "ConfigError", "CorruptDataError", "IncompleteReadError"),
        *("MissingPackageError", "NotEmptyError", "NotFoundError", "OutOfSpaceError", "PreconditionFailedError"),
        *("S3dlioError", "ThrottledError", "UnsafePickleError", "UnsupportedError"),
    ),
    "data.bad_samples": ("BadSampleWarning",),
    "data.dataset": ("PyDataset",),
    "data.iterators": ("PyObjectDataLoaderSyncIter",),
    "data.stream": ("PyBytesAsyncDataLoader",),
    "data.parquet": ("create_async_loader",),
    "data.parquet_lookup": (
        *("PyParquetIndex", "configure_tokio_threads", "parquet_cache_clear", "parquet_cache_invalidate"),
        *("parquet_cache_len", "parquet_get_rg", "parquet_rg_row_offsets"),
    ),
    "data.npy": ("load_npy", "read_npy"),
    "data.npz": ("generate_npz_bytes", "load_npz", "read_npz"),
    "data.tar": ("TarFile", "TarReader", "TarSampleReader", "create_tar_index"),
    "data.tfrecord": ("TFRecordFile", "TFRecordReader", "create_tfrecord_index"),
    "data.window": ("ShuffleWindow",),
    "checkpoint.catalog": ("CheckpointInfo", "delete_checkpoint", "latest_checkpoint", "list_checkpoints"),
    "checkpoint.retention": ("keep_last",),
    "torch": ("ObjectStoreIterableDataset", "ObjectStoreMapDataset"),
    "torch.checkpoint": (
        *("finalize_distributed_checkpoint", "load_checkpoint", "load_checkpoint_with_validation"),
        *("load_distributed_shard", "save_checkpoint", "save_distributed_shard"),
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
# Other names of the guides for the same class.
_ALIASES = {"PyBytesView": "BytesView", "PyObjectItem": "BytesView"}
# What does the work of names of the guides that are not there yet.
_INSTEAD = {
    "MultipartUploadWriter": "open_writer",
    "download": "get_many, or open_reader for large objects",
    "get_many_stats": "stat_many",
    "mp_get": "get_many",
    "upload": "put_many, or open_writer for large files",
}

__all__ = [
    "AccessDeniedError",
    "BadSampleWarning",
    "BytesView",
    "ChangedError",
    "CheckpointInfo",
    "ConfigError",
    "CorruptDataError",
    "IncompleteReadError",
    "MissingPackageError",
    "NotEmptyError",
    "NotFoundError",
    "ObjectStoreIterableDataset",
    "ObjectStoreMapDataset",
    "OutOfSpaceError",
    "PreconditionFailedError",
    "PyBytesAsyncDataLoader",
    "PyBytesView",
    "PyDataset",
    "PyObjectDataLoaderSyncIter",
    "PyObjectItem",
    "PyParquetIndex",
    "PyWriterOptions",
    "S3dlioError",
    "ShuffleWindow",
    "TFRecordFile",
    "TFRecordReader",
    "TarFile",
    "TarReader",
    "TarSampleReader",
    "ThrottledError",
    "UnsafePickleError",
    "UnsupportedError",
    "__version__",
    "configure_s3",
    "configure_tokio_threads",
    "create_async_loader",
    "create_azure_writer",
    "create_bucket",
    "create_bucket_async",
    "create_direct_filesystem_writer",
    "create_filesystem_writer",
    "create_gcs_writer",
    "create_s3_writer",
    "create_tar_index",
    "create_tfrecord_index",
    "delete",
    "delete_async",
    "delete_bucket",
    "delete_bucket_async",
    "delete_checkpoint",
    "exists",
    "exists_async",
    "finalize_distributed_checkpoint",
    "generate_npz_bytes",
    "get",
    "get_async",
    "get_many",
    "get_many_async",
    "get_object",
    "get_object_async",
    "get_range",
    "get_range_async",
    "init_logging",
    "keep_last",
    "latest_checkpoint",
    "list",
    "list_async",
    "list_checkpoints",
    "list_full_uris",
    "list_full_uris_async",
    "list_keys",
    "list_keys_async",
    "load_checkpoint",
    "load_checkpoint_with_validation",
    "load_distributed_shard",
    "load_npy",
    "load_npz",
    "mkdir",
    "mkdir_async",
    "open_reader",
    "open_writer",
    "parquet_cache_clear",
    "parquet_cache_invalidate",
    "parquet_cache_len",
    "parquet_get_rg",
    "parquet_rg_row_offsets",
    "put_bytes",
    "put_bytes_async",
    "put_many",
    "put_many_async",
    "read_npy",
    "read_npz",
    "save_checkpoint",
    "save_distributed_shard",
    "stat",
    "stat_async",
    "stat_many",
    "stat_many_async",
    "stat_object",
    "stat_object_async",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module, once (PEP 562)."""
    import importlib

    if name == "torch":
        with _gate:
            return importlib.import_module(".torch", __name__)
    if name not in _HOMES:
        instead = f" yet: use s3dlio.{_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module 's3dlio' has no attribute {name!r}{instead}")
    with _gate:
        module = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = getattr(module, _ALIASES.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:  # type: ignore[valid-type]
    return sorted(__all__)

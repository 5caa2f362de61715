"""Every public name of the two guides, done or later; and that what is public is exported, annotated and explained."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from types import ModuleType
from typing import Any

import pytest

import s3dlio
from s3dlio import config

# Name -> the parameters by which the guides call it, in their order; None for what is not called.
DONE: dict[str, str | None] = {
    "BytesView": None,
    "BytesView.__len__": "",
    "ObjectStoreIterableDataset": "uri shuffle",
    "ObjectStoreMapDataset": "uri pattern",
    "PyBytesAsyncDataLoader": "dataset opts",
    "PyBytesAsyncDataLoader.__iter__": "",
    "PyBytesAsyncDataLoader.items": "",
    "PyBytesView": None,
    "PyDataset": "prefix_uri",
    "PyDataset.__len__": "",
    "PyDataset.from_uris": "uris",
    "PyObjectDataLoaderSyncIter": None,
    "PyObjectDataLoaderSyncIter.collect_batch": "n",
    "PyObjectItem": None,
    "PyObjectItem.byte_count": None,
    "PyObjectItem.uri": None,
    "PyWriterOptions": "",
    "PyWriterOptions.chunk_size": None,
    "PyWriterOptions.compression": None,
    "PyWriterOptions.compression_level": None,
    "__version__": None,
    "configure_s3": "endpoint_url region ca_bundle",
    "create_async_loader": "uri opts",
    "create_azure_writer": "uri options",
    "create_bucket": "name",
    "create_direct_filesystem_writer": "uri options",
    "create_filesystem_writer": "uri options",
    "create_s3_writer": "uri options",
    "create_tfrecord_index": "input_path output_path",
    "delete": "uri",
    "delete_async": "uri",
    "delete_bucket": "name",
    "exists": "uri",
    "exists_async": "uri",
    "finalize_distributed_checkpoint": "base_uri world_size",
    "generate_npz_bytes": "shape dtype num_samples",
    "get": "uri",
    "get_async": "uri",
    "get_many": "uris workers",
    "get_many_async": "uris",
    "get_object": "uri",
    "get_object_async": "uri",
    "get_range": "uri offset length",
    "get_range_async": "uri offset length",
    "init_logging": "level",
    "list": "uri recursive pattern",
    "list_async": "uri recursive pattern",
    "list_full_uris": "uri",
    "list_full_uris_async": "uri",
    "list_keys": "uri",
    "list_keys_async": "uri",
    "load_checkpoint": "uri",
    "load_checkpoint_with_validation": "uri expected_keys",
    "mkdir": "uri",
    "mkdir_async": "uri",
    "put_bytes": "uri data",
    "put_bytes_async": "uri data",
    "put_many": "items",
    "put_many_async": "items",
    "save_checkpoint": "uri data compress",
    "save_distributed_shard": "uri data rank world_size shard_data",
    "stat": "uri",
    "stat_async": "uri",
    "stat_many_async": "uris",
    "stat_object": "uri",
    "stat_object_async": "uri",
}

# Of the guides, and not there yet. Who brings one moves it up, with its parameters.
LATER = [
    "JaxIterable",
    "MultiEndpointStore",
    "MultiEndpointStore.delete",
    "MultiEndpointStore.endpoint_count",
    "MultiEndpointStore.get",
    "MultiEndpointStore.get_endpoint_stats",
    "MultiEndpointStore.get_range",
    "MultiEndpointStore.get_total_stats",
    "MultiEndpointStore.list",
    "MultiEndpointStore.put",
    "MultiEndpointStore.strategy",
    "MultipartUploadWriter",
    "MultipartUploadWriter.from_uri",
    "MultipartUploadWriter.write",
    "compat.s3torchconnector.S3Checkpoint",
    "compat.s3torchconnector.S3Checkpoint.reader",
    "compat.s3torchconnector.S3Checkpoint.writer",
    "compat.s3torchconnector.S3Client",
    "compat.s3torchconnector.S3Client.get_object",
    "compat.s3torchconnector.S3Client.list_objects",
    "compat.s3torchconnector.S3Client.put_object",
    "compat.s3torchconnector.S3ClientConfig",
    "compat.s3torchconnector.S3Item",
    "compat.s3torchconnector.S3IterableDataset",
    "compat.s3torchconnector.S3IterableDataset.from_prefix",
    "compat.s3torchconnector.S3MapDataset",
    "compat.s3torchconnector.S3MapDataset.from_prefix",
    "create_multi_endpoint_store",
    "create_multi_endpoint_store_from_file",
    "create_multi_endpoint_store_from_template",
    "download",
    "finalize_op_log",
    "get_many_stats",
    "init_op_log",
    "is_op_log_active",
    "make_tf_dataset",
    "mp_get",
    "upload",
]

VARIABLES_DONE = {
    "S3DLIO_CHUNK_SIZE",
    "S3DLIO_ENABLE_RANGE_OPTIMIZATION",
    "S3DLIO_RANGE_CONCURRENCY",
    "S3DLIO_RANGE_THRESHOLD_MB",
    "S3DLIO_SKIP_HEAD",
    "S3DLIO_WORKER_THREADS",
}
VARIABLES_LATER: set[str] = set()

# Names that no guide has: what the package adds.
OWN = {
    *("BadSampleWarning", "CheckpointInfo", "PyParquetIndex", "ShuffleWindow", "TFRecordFile", "TFRecordReader"),
    *("TarFile", "TarReader", "TarSampleReader", "configure_tokio_threads", "create_bucket_async"),
    *("create_gcs_writer", "create_tar_index", "delete_bucket_async", "delete_checkpoint", "keep_last"),
    *("latest_checkpoint", "list_checkpoints", "load_distributed_shard", "load_npy", "load_npz", "open_reader"),
    *("open_writer", "parquet_cache_clear", "parquet_cache_invalidate", "parquet_cache_len", "parquet_get_rg"),
    *("parquet_rg_row_offsets", "read_npy", "read_npz", "stat_many"),
    *(name for name in s3dlio.__all__ if name.endswith("Error")),
}

FOLDERS = ("checkpoint", "data", "transfer", "storage.cloud")  # without names of their own
MODULES = [
    importlib.import_module(found.name)
    for found in pkgutil.walk_packages(s3dlio.__path__, "s3dlio.")
    if found.name
    not in (
        "s3dlio.checkpoint",
        "s3dlio.data",
        "s3dlio.transfer",
        "s3dlio.storage.cloud",
    )  # folders without names of their own
    if found.name.removeprefix("s3dlio.") not in FOLDERS
]


def find(name: str) -> Any:
    """The value of a dotted name below s3dlio. Raises AttributeError when there is none."""
    value: Any = s3dlio
    for part in name.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            if not isinstance(value, ModuleType):
                raise
            try:
                value = importlib.import_module(f"{value.__name__}.{part}")
            except ModuleNotFoundError:
                raise AttributeError(name) from None
    return value


@pytest.mark.parametrize("name", sorted(DONE))
def test_a_done_name_exists_and_takes_the_parameters_of_the_guides(name: str) -> None:
    value = find(name)
    parameters = DONE[name]
    if parameters is not None:
        wanted = parameters.split()
        known = [parameter for parameter in inspect.signature(value).parameters if parameter in wanted]
        assert known == wanted


@pytest.mark.parametrize("name", LATER)
def test_a_later_name_is_not_there_yet_or_else_moves_up_in_the_table(name: str) -> None:
    with pytest.raises(AttributeError):
        find(name)


def test_no_name_stands_twice_in_the_table() -> None:
    assert not DONE.keys() & set(LATER)
    assert len(LATER) == len(set(LATER))


def test_a_name_that_is_not_there_yet_says_what_to_use() -> None:
    assert s3dlio._INSTEAD.keys() <= set(LATER)
    for name in LATER:
        if "." not in name:
            with pytest.raises(AttributeError, match=name) as caught:
                getattr(s3dlio, name)
            instead = str(caught.value).partition(" yet: use s3dlio.")[2]
            assert bool(instead) == (name in s3dlio._INSTEAD)
            assert all(hasattr(s3dlio, word) for word in re.findall(r"\w+_\w+", instead))


def test_every_exported_name_is_of_the_guides_or_known_to_be_our_own() -> None:
    assert set(s3dlio.__all__) == {name for name in DONE if "." not in name} | OWN


def test_the_package_offers_exactly_what_all_says() -> None:
    assert dir(s3dlio) == sorted(s3dlio.__all__)
    assert set(s3dlio._HOMES) | {"__version__"} == set(s3dlio.__all__)
    assert all(getattr(s3dlio, name) is not None for name in s3dlio.__all__)
    for_type_checkers = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(inspect.getsource(s3dlio)))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
        if not (alias.asname or "").startswith("_")
    }
    assert for_type_checkers | {"__version__"} == set(s3dlio.__all__)


def test_variables_of_the_guides_are_read_or_known_to_come_later() -> None:
    assert set(config._VARIABLES) >= VARIABLES_DONE
    assert not set(config._VARIABLES) & VARIABLES_LATER


def defined_in(module: ModuleType) -> set[str]:
    """Functions, classes and lower-case values that a module defines under a name without an underscore."""
    names = set()
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name) and target.id.islower()}
    return {name for name in names if not name.startswith("_")} - {"log"}


@pytest.mark.parametrize("module", [s3dlio, *MODULES], ids=lambda module: module.__name__)
def test_all_is_sorted_and_holds_every_public_function_and_class(module: ModuleType) -> None:
    listed = module.__all__
    assert sorted(set(listed)) == list(listed)
    assert defined_in(module) <= set(listed)
    assert all(hasattr(module, name) for name in listed)


def public_things() -> list[tuple[str, Any]]:
    """Every function and class of every `__all__`, and the methods of those classes."""
    things = {}
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            if getattr(value, "__module__", "").startswith("s3dlio") and (
                inspect.isclass(value) or inspect.isfunction(value)
            ):
                things[f"{value.__module__}.{value.__qualname__}"] = value
    return sorted(things.items())


@pytest.mark.parametrize(("name", "value"), public_things())
def test_a_public_thing_has_a_docstring_and_full_annotations(name: str, value: Any) -> None:
    assert (value.__doc__ or "").strip(), "no docstring"
    for function in [value] if inspect.isfunction(value) else vars(value).values():
        if inspect.isfunction(function) and inspect.getsourcefile(inspect.unwrap(function)) == inspect.getsourcefile(value):
            parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
            assert {*parameters, "return"} <= function.__annotations__.keys(), function.__qualname__

"""The 47 cases from field reports, call by call: the test that covers each row, or `later`.

Whoever brings a call brings its rows; test_cases.py checks that every named test exists.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CASES", "LATER", "Case"]

LATER = "later"


class Case(NamedTuple):
    """One row: the case's number, the call on which it is tried, and the test as pytest names it (or LATER)."""

    id: str
    call: str
    test: str


_STORAGE = "tests/test_storage.py::TestEveryStore::"
_EXACT = "tests/test_storage.py::TestExactStores::"
_OBJECTS = "tests/test_objects.py::"
_LOCAL = "tests/test_local.py::"
_DIRECT = "tests/test_fileio.py::"
_WRITE = "tests/test_write.py::"
_PARQUET = "tests/test_parquet_index.py::"
_READ = "tests/test_read.py::"
_TFRECORD = "tests/test_tfrecord.py::"
_STREAM = "tests/test_stream.py::"
_WRITERS = "tests/test_writers.py::"
_CHECKPOINTS = "tests/test_checkpoints.py::"
_DELETED_BY_HALF = (
    "tests/test_checkpoint_catalog.py::TestDeleting::"
    "test_one_that_is_deleted_by_half_is_no_checkpoint_and_can_be_deleted_again"
)
_FAILURES = "tests/test_checkpoint_failures.py::"

CASES = (
    Case("O01", "get, stat, delete, list: key characters", _STORAGE + "test_a_key_is_opaque"),
    Case("O01", "put beside its neighbours", _STORAGE + "test_awkward_keys_stand_side_by_side"),
    Case("O01", "parse on s3, gs, az, memory", "tests/test_uri.py::test_a_key_is_opaque_on_every_scheme"),
    Case(
        "O01",
        "get, stat, exists, delete on s3://",
        "tests/test_s3_faults.py::test_every_awkward_key_is_itself_in_every_verb",
    ),
    Case("O02", "a//b and a/b", _EXACT + "test_slashes_and_dots_are_key_or_path_but_never_mixed_up"),
    Case("O02", "dir/ with content", _EXACT + "test_a_name_with_a_trailing_slash_holds_bytes_or_refuses_them"),
    Case("O02", "/lead", _EXACT + "test_a_leading_slash_belongs_to_the_key"),
    Case("O02", "get, list on s3://", "tests/test_s3_faults.py::test_double_slashes_and_trailing_slashes_belong_to_the_key"),
    Case("O03", "download", LATER),
    Case("O04", "list(recursive=True), mkdir", _OBJECTS + "TestListing::test_markers_keep_their_slash"),
    Case("O04", "PyDataset", _STREAM + "TestDataset::test_markers_on_s3"),
    Case(
        "O04",
        "ObjectStoreMapDataset, ObjectStoreIterableDataset",
        "tests/test_torch_dataset.py::test_markers_are_no_samples",
    ),
    Case("O05", "list", _OBJECTS + "TestListing::test_a_neighbour_is_never_listed"),
    Case(
        "O05",
        "list: an object called data",
        _OBJECTS + "TestListing::test_an_object_and_a_prefix_of_one_name_are_both_listed",
    ),
    Case("O05", "delete(recursive=True)", _OBJECTS + "TestDeleting::test_a_recursive_delete_touches_no_neighbour"),
    Case(
        "O05",
        "ObjectStoreMapDataset, ObjectStoreIterableDataset",
        "tests/test_torch_dataset.py::test_neighbours_of_the_prefix_are_no_samples",
    ),
    Case("O06", "list, list_keys", _OBJECTS + "TestListing::test_many_keys_are_all_listed"),
    Case("O06", "Store.list", _STORAGE + "test_a_long_listing_is_complete"),
    Case("O06", "PyDataset", _STREAM + "TestDataset::test_more_objects_than_a_page_of_a_listing"),
    Case("O06", "S3MapDataset.from_prefix, S3Client.list_objects", LATER),
    Case(
        "O06",
        "ObjectStoreMapDataset, ObjectStoreIterableDataset",
        "tests/test_torch_dataset.py::test_more_objects_than_a_page_of_a_listing",
    ),
    Case("O07", "list on file://, access denied", _LOCAL + "TestPermissions::test_a_directory_that_may_not_be_entered"),
    Case("O07", "PyDataset", _STREAM + "TestDataset::test_a_listing_that_fails_is_not_an_empty_one"),
    Case("O07", "S3IterableDataset.from_prefix, DLIO plugin", LATER),
    Case(
        "O07",
        "ObjectStoreMapDataset, ObjectStoreIterableDataset",
        "tests/test_torch_dataset.py::test_a_listing_that_fails_is_not_an_empty_one",
    ),
    Case(
        "O07",
        "list on s3:// that fails: 503, no bucket, denied",
        "tests/test_s3_faults.py::test_a_failed_listing_is_an_error_and_no_empty_listing",
    ),
    Case("O08", "get: a short part", _READ + "TestShortBodies::test_a_short_part_is_an_error_that_tells_the_bytes"),
    Case(
        "O08",
        "get on file://, truncated",
        _LOCAL + "TestVanishing::test_a_file_that_is_truncated_while_it_is_read_is_an_error",
    ),
    Case(
        "O08",
        "get on s3://: the body ends early once",
        "tests/test_s3_faults.py::test_a_body_that_breaks_off_once_is_completed",
    ),
    Case(
        "O08",
        "get on s3://: the body always ends early",
        "tests/test_s3_faults.py::test_a_body_that_always_breaks_off_is_an_error_that_names_the_uri",
    ),
    Case("O08", "PyBytesAsyncDataLoader", _STREAM + "TestErrors::test_a_body_that_ends_early"),
    Case(
        "O09",
        "PyBytesAsyncDataLoader",
        _STREAM + "TestErrors::test_a_server_that_throttles_each_object_thrice_gives_all_of_them",
    ),
    Case("O09", "S3ClientConfig", LATER),
    Case("O09", "get_many", "tests/test_s3_recovery.py::test_a_server_that_throttles_each_object_thrice_gives_all_of_them"),
    Case("O09", "Retry-After", "tests/test_s3_recovery.py::test_retry_after_is_waited_for"),
    Case(
        "O10",
        "credentials that expire",
        "tests/test_credentials.py::test_an_expired_token_is_renewed_for_all_that_is_under_way",
    ),
    Case("O10", "16 forked workers", "tests/test_credentials.py::test_forked_workers_each_ask_a_few_times"),
    Case(
        "O11",
        "get, put_bytes, list: wrong region",
        "tests/test_s3_recovery.py::test_a_wrong_region_is_corrected_once_for_every_verb",
    ),
    Case(
        "O12",
        "configure_s3: endpoint",
        "tests/test_s3_recovery.py::test_a_custom_endpoint_is_asked_in_path_style_and_may_change_at_any_time",
    ),
    Case("O13", "configure_s3: private CA", "tests/test_s3_config.py::test_a_private_authority_is_trusted_when_told"),
    Case(
        "O13", "untrusted certificate", "tests/test_s3_config.py::test_an_untrusted_certificate_is_final_and_nothing_is_sent"
    ),
    Case("O13", "missing CA file", "tests/test_s3_config.py::test_a_missing_or_broken_ca_file_is_told_by_name"),
    Case(
        "O14",
        "get: checksums of parts",
        "tests/test_s3_recovery.py::test_checksums_of_parts_or_of_kinds_that_are_not_checked_do_not_refuse_an_object",
    ),
    Case(
        "O14",
        "put_bytes: a checksum is sent",
        "tests/test_s3_recovery.py::test_a_write_carries_a_checksum_unless_told_otherwise_and_no_chunk_framing",
    ),
    Case("O15", "get, get_many, get_range: replaced once", _READ + "TestChanges::test_an_object_replaced_once_is_read_anew"),
    Case("O15", "get: conditions ignored", _READ + "TestChanges::test_a_server_that_ignores_the_condition_is_found_out"),
    Case("O15", "open_reader", "tests/test_file.py::test_an_object_replaced_meanwhile_is_an_error_never_a_mixture"),
    Case(
        "O15",
        "PyBytesAsyncDataLoader",
        _STREAM + "TestErrors::test_an_object_replaced_between_its_ranges_is_all_old_or_all_new",
    ),
    Case("O15", "S3Checkpoint.reader", LATER),
    Case("O15", "get on s3://", "tests/test_s3_recovery.py::test_an_object_replaced_between_ranges_is_all_old_or_all_new"),
    Case("O16", "get, get_range, stat on gs://", LATER),
    Case(
        "O17",
        "get_many: clock skew",
        "tests/test_s3_recovery.py::test_a_clock_that_is_off_is_corrected_for_requests_in_parallel",
    ),
    Case("O18", "MultipartUploadWriter, create_s3_writer", LATER),
    Case(
        "O18",
        "open_writer: an error inside 200",
        "tests/test_s3_uploads.py::test_an_error_inside_a_good_answer_to_complete_is_tried_again",
    ),
    Case(
        "O18",
        "open_writer: always",
        "tests/test_s3_uploads.py::test_an_upload_that_cannot_be_completed_is_an_error_and_leaves_nothing",
    ),
    Case(
        "O19",
        "get from 16 threads on s3://",
        "tests/test_s3_recovery.py::test_parallel_ranges_in_many_threads_put_every_byte_in_its_place",
    ),
    Case("O20", "create_multi_endpoint_store*", LATER),
    Case("O21", "ObjectWriter on limits", _WRITE + "test_parts_grow_so_that_their_number_is_never_exceeded"),
    Case("O21", "put beyond one request", _WRITE + "test_put_uses_parts_beyond_what_one_request_takes"),
    Case("O21", "MultipartUploadWriter, create_s3_writer, save_checkpoint", LATER),
    Case("O22", "open_writer: an exception", _WRITE + "TestEnds::test_an_exception_passes_unchanged_and_publishes_nothing"),
    Case("O22", "open_writer: garbage collection", _WRITE + "TestEnds::test_garbage_collection_aborts"),
    Case(
        "O22",
        "open_writer on disk: exit, exception, abort, ^C",
        _LOCAL + "TestCrash::test_an_exit_publishes_nothing_and_leaves_nothing",
    ),
    Case("O22", "open_writer, put_bytes on disk: SIGKILL", _LOCAL + "TestCrash::test_kill_in_the_middle_of_writing"),
    Case(
        "O22",
        "create_s3_writer and its kin with gzip and zstd",
        _WRITERS + "test_an_exception_publishes_nothing_and_stays_what_it_is",
    ),
    Case(
        "O22",
        "save_checkpoint, save_distributed_shard",
        _FAILURES + "test_an_error_of_the_users_own_data_stays_what_it_is",
    ),
    Case("O22", "MultipartUploadWriter", LATER),
    Case(
        "O22",
        "open_writer on s3://",
        "tests/test_s3_uploads.py::test_an_exception_of_the_user_publishes_nothing_and_stays_what_it_is",
    ),
    Case(
        "O22",
        "dcp.save: an item that fails",
        "tests/test_torch_dcp.py::TestFailingSave::test_an_item_that_cannot_be_pickled",
    ),
    Case("O22", "safetensors.save_file", "tests/test_torch_safetensors.py::test_a_save_that_fails_leaves_the_old_file"),
    Case("O23", "put_bytes, open_writer", _OBJECTS + "TestWriting::test_empty_data_replaces_the_old_object"),
    Case("O23", "create_s3_writer and its kin", _WRITERS + "test_empty_output_is_an_object_and_replaces_the_old_one"),
    Case("O23", "save_checkpoint", _CHECKPOINTS + "TestSingle::test_what_is_hardly_anything_comes_back"),
    Case("O23", "upload", LATER),
    Case("O23", "open_writer on s3://", "tests/test_s3_uploads.py::test_empty_output_is_an_empty_object"),
    Case("O23", "dcp.save of an empty state", "tests/test_torch_dcp.py::test_an_empty_state_comes_back_as_one"),
    Case("O24", "create_s3_writer: compression", LATER),
    Case(
        "O24",
        "create_filesystem_writer: one frame, finalize again",
        _WRITERS + "test_one_frame_a_second_finalize_and_a_late_write",
    ),
    Case(
        "O24",
        "PyWriterOptions: compression",
        _WRITERS + "TestOptions::test_a_wrong_codec_is_refused_when_it_is_assigned",
    ),
    Case(
        "O24",
        "PyWriterOptions: level",
        _WRITERS + "TestOptions::test_a_wrong_level_is_refused_when_it_is_assigned",
    ),
    Case(
        "O24",
        "several frames are read",
        "tests/test_compress.py::TestEveryCodec::test_frames_one_behind_the_other_are_all_read",
    ),
    Case(
        "O24",
        "a stream that is cut",
        "tests/test_compress.py::TestEveryCodec::test_a_stream_that_ends_within_a_frame_is_an_error",
    ),
    Case(
        "O25",
        "put_bytes, put_many, open_writer: any buffer",
        _OBJECTS + "TestWriting::test_any_buffer_is_written_as_its_bytes",
    ),
    Case("O25", "write: number of bytes", _WRITE + "TestAsAFile::test_write_returns_the_number_of_bytes_not_of_items"),
    Case("O25", "put_bytes: a BytesView", _OBJECTS + "TestWriting::test_a_view_from_get_can_be_put"),
    Case("O25", "create_s3_writer and its kin", _WRITERS + "test_any_buffer_counts_as_its_bytes"),
    Case("O25", "put_bytes: 2**31 + 10 bytes", "tests/test_view.py::test_more_than_2_gib_is_written_and_read_whole"),
    Case(
        "O25",
        "str, int, None, list",
        _OBJECTS + "TestWrongArguments::test_a_payload_is_a_buffer_and_nothing_is_written_otherwise",
    ),
    Case(
        "O25",
        "dcp.save, safetensors.save_file: tensors in any order",
        "tests/test_torch_safetensors.py::test_tensors_in_any_order_of_memory_are_written",
    ),
    Case(
        "O26",
        "fork from a thread beside get",
        "tests/test_runtime.py::TestFork::test_a_fork_from_one_thread_while_others_are_inside_calls",
    ),
    Case(
        "O26",
        "get_many, get_async after fork",
        "tests/test_runtime.py::TestFork::test_a_child_starts_with_no_threads_and_new_stores",
    ),
    Case(
        "O26", "open_writer inherited by a child", _LOCAL + "TestCrash::test_a_forked_child_leaves_the_parents_writer_alone"
    ),
    Case(
        "O26",
        "PyBytesAsyncDataLoader by fork, spawn, forkserver",
        _STREAM + "TestProcesses::test_a_loader_of_s3_that_was_used_works_in_other_processes",
    ),
    Case(
        "O26",
        "an iteration that a fork interrupts",
        _STREAM + "TestProcesses::test_a_child_does_not_go_on_with_the_iteration_of_its_parent",
    ),
    Case("O26", "S3MapDataset, S3IterableDataset", LATER),
    Case(
        "O26",
        "create_async_loader, parquet, in a forked child",
        _PARQUET + "TestSecondEpoch::test_a_forked_child_knows_what_its_parent_knew",
    ),
    Case("O26", "pickle of the datasets", "tests/test_torch_dataset.py::test_datasets_survive_a_pickle"),
    Case(
        "O26",
        "DataLoader by fork, spawn, forkserver",
        "tests/test_torch_dataset.py::test_workers_read_what_the_parent_has_listed_and_read",
    ),
    Case("O26", "two DataLoaders in turns", "tests/test_torch_dataset.py::test_two_loaders_in_turns"),
    Case(
        "O26",
        "fork while threads are inside get",
        "tests/test_torch_dataset.py::test_fork_from_a_thread_while_other_threads_are_inside_get",
    ),
    Case("O26", "DataPipes", "tests/test_datapipes.py::test_a_spawned_worker_gets_the_pipe"),
    Case(
        "O27",
        "each exception class: type(e)('msg'), pickle",
        "tests/test_errors.py::TestEachKind::test_it_survives_pickling",
    ),
    Case(
        "O27",
        "each exception class through PyTorch",
        "tests/test_errors.py::TestEachKind::test_pytorch_can_rebuild_it_from_its_text",
    ),
    Case(
        "O27",
        "DataLoader over a ParquetDataset",
        "tests/test_torch_parquet.py::test_an_error_in_a_worker_keeps_its_kind_and_names_the_file",
    ),
    Case(
        "O27",
        "DataLoader: an object is gone",
        "tests/test_torch_dataset.py::test_an_object_that_is_gone_fails_by_type_and_uri",
    ),
    Case(
        "O27",
        "DataLoader: an object is denied",
        "tests/test_torch_dataset.py::test_an_object_that_is_closed_fails_by_type_and_uri",
    ),
    Case("O27", "PyBytesAsyncDataLoader", _STREAM + "TestErrors::test_a_denied_object_is_denied_by_name"),
    Case(
        "O28",
        "PyBytesAsyncDataLoader: 100 early ends",
        _STREAM + "TestLeavingEarly::test_a_hundred_early_ends_leave_no_thread_and_no_descriptor",
    ),
    Case(
        "O28",
        "PyBytesAsyncDataLoader: break, raise, close, async",
        _STREAM + "TestLeavingEarly::test_every_way_out_ends_all_requests",
    ),
    Case(
        "O28",
        "PyBytesAsyncDataLoader: SIGINT",
        _STREAM + "TestLeavingEarly::test_control_c_ends_the_wait_and_the_process",
    ),
    Case(
        "O28",
        "read_many: 100 early ends",
        "tests/test_runtime.py::TestLeavingEarly::test_a_hundred_early_ends_leave_no_thread_and_no_descriptor",
    ),
    Case(
        "O28",
        "get, list, get_many: SIGINT",
        "tests/test_runtime.py::TestLeavingEarly::test_an_interrupt_ends_the_call_and_the_process",
    ),
    Case(
        "O28",
        "raise in the loop body",
        "tests/test_runtime.py::TestLeavingEarly::test_an_error_of_the_users_loop_ends_the_process_with_1",
    ),
    Case("O28", "download: SIGINT", LATER),
    Case(
        "O28",
        "create_async_loader, parquet: SIGINT",
        "tests/test_parquet_process.py::test_control_c_ends_a_loader_that_waits_and_then_the_process",
    ),
    Case(
        "O28",
        "create_async_loader, parquet: break, raise, collected",
        "tests/test_parquet_index.py::TestWindow::test_leaving_early_stops_and_leaves_nothing_behind",
    ),
    Case("O28", "datasets: break", "tests/test_torch_dataset.py::test_leaving_early_leaves_nothing_behind"),
    Case(
        "O28",
        "get, get_many, list on s3://: SIGINT",
        "tests/test_s3_recovery.py::test_control_c_ends_a_call_that_waits_and_then_the_process",
    ),
    Case("O28", "DataPipes", "tests/test_datapipes.py::test_leaving_early_leaves_nothing_behind"),
    Case("O28", "nodes", "tests/test_nodes.py::test_leaving_early_leaves_nothing_behind"),
    Case("O28", "StatefulDataLoader", "tests/test_torch_stateful.py::test_leaving_early_leaves_nothing_behind"),
    Case(
        "O29",
        "PyDataset.from_uris in forked workers",
        _STREAM + "TestProcesses::test_workers_share_the_names_of_a_large_dataset",
    ),
    Case(
        "O29",
        "PyBytesAsyncDataLoader, 20 epochs",
        _STREAM + "TestWindow::test_memory_threads_and_descriptors_stay_level_over_20_epochs",
    ),
    Case("O29", "PyBytesAsyncDataLoader: one window", _STREAM + "TestWindow::test_memory_is_that_of_the_window"),
    Case("O29", "create_async_loader, parquet", "tests/test_parquet_process.py::test_memory_is_a_window_of_row_groups"),
    Case("O29", "KeyList in forked workers", "tests/test_keys.py::test_forked_workers_share_a_million_names"),
    Case(
        "O29",
        "DataLoader, 50 epochs",
        "tests/test_torch_dataset.py::test_memory_threads_and_descriptors_stay_level_over_50_epochs",
    ),
    Case("O30", "create_async_loader, parquet", "tests/test_parquet.py::TestOrder::test_ranks_share_all_row_groups"),
    Case("O30", "ParquetDataset", "tests/test_torch_parquet.py::test_workers_share_the_row_groups"),
    Case("O30", "ObjectStoreIterableDataset", "tests/test_torch_dataset.py::test_ranks_and_workers_share_a_stream_exactly"),
    Case(
        "O30",
        "ObjectStoreMapDataset, DistributedSampler",
        "tests/test_torch_dataset.py::test_torchs_own_distributed_sampler_shares_a_map_dataset",
    ),
    Case(
        "O30", "a rank with nothing", "tests/test_torch_dataset.py::test_a_rank_and_a_worker_with_nothing_to_do_end_normally"
    ),
    Case(
        "O30",
        "gloo under torchrun",
        "tests/test_torch_distributed.py::test_a_job_reads_each_object_once_per_epoch_though_it_is_killed_and_resumed",
    ),
    Case("O30", "PyBytesAsyncDataLoader: shards", _STREAM + "TestOptions::test_batches_shards_and_shuffling"),
    Case("O30", "DataPipes", "tests/test_datapipes.py::test_every_item_comes_once_whatever_the_workers"),
    Case(
        "O31",
        "on_error: bad samples",
        "tests/test_bad_samples.py::TestDatasets::test_a_resumed_epoch_goes_on_as_if_nothing_were_bad",
    ),
    Case(
        "O31",
        "Subset after 20 samples",
        "tests/test_torch_dataset.py::test_skipping_what_was_read_goes_on_as_if_uninterrupted",
    ),
    Case("O31", "len(DataLoader)", "tests/test_torch_dataset.py::test_len_of_a_data_loader_is_the_number_of_its_batches"),
    Case("O31", "s3dlio.torch.loader", "tests/test_torch_loader.py::test_other_ranks_and_workers_go_on_after_a_random_step"),
    Case("O31", "create_async_loader, parquet", "tests/test_parquet.py::TestOrder::test_a_state_resumes_exactly"),
    Case(
        "O31",
        "ParquetDataset, s3dlio.torch.loader",
        "tests/test_torch_parquet.py::test_a_loader_resumes_exactly_with_other_workers_and_ranks",
    ),
    Case("O31", "StatefulDataLoader", "tests/test_torch_stateful.py::test_a_state_goes_on_exactly"),
    Case("O31", "DataPipes", "tests/test_datapipes.py::test_a_pipe_dataset_resumes_exactly_and_again"),
    Case("O31", "nodes", "tests/test_nodes.py::test_epochs_differ_and_a_state_goes_on_exactly"),
    Case("O32", "ParquetDataset", "tests/test_torch_parquet.py::test_what_is_decoded_is_not_copied_again"),
    Case("O32", "torch.frombuffer", "tests/test_torch_collate.py::test_a_view_is_a_tensors_memory_without_a_warning"),
    Case("O32", "writing in place", "tests/test_torch_collate.py::test_writing_to_a_tensor_changes_no_other_view"),
    Case(
        "O32",
        "offset, dtype, empty",
        "tests/test_torch_collate.py::test_offsets_and_item_types_that_do_not_fit_are_torchs_own_errors",
    ),
    Case(
        "O32",
        "default collate",
        "tests/test_torch_collate.py::test_the_default_collate_gives_lists_of_views_of_unequal_lengths",
    ),
    Case(
        "O33",
        "create_async_loader, parquet: pieces of a chunk",
        _PARQUET + "TestWindow::test_large_chunks_come_in_pieces",
    ),
    Case("O33", "get, get_range around chunk borders", _READ + "test_ranges_around_every_chunk_border_of_a_large_object"),
    Case("O33", "get_range: any offset and length", _READ + "test_a_range_is_the_slice_whatever_the_chunks"),
    Case("O33", "MultiEndpointStore.get_range", LATER),
    Case(
        "O34",
        "dcp.save, dcp.load",
        "tests/test_torch_dcp.py::test_every_kind_of_tensor_comes_back_and_each_byte_is_read_once",
    ),
    Case(
        "O34",
        "torch.save, torch.load",
        "tests/test_torch_checkpoint.py::test_300_tensors_come_back_and_each_byte_is_read_once",
    ),
    Case("O34", "torch.save, torch.load: the old format", "tests/test_torch_checkpoint.py::test_the_old_format_comes_back"),
    Case(
        "O34",
        "save_checkpoint, load_checkpoint: each byte once",
        _FAILURES + "test_loading_a_shard_reads_each_byte_once",
    ),
    Case(
        "O34",
        "load_checkpoint: the old format",
        _CHECKPOINTS + "TestSingle::test_what_torch_wrote_is_read_and_the_reverse",
    ),
    Case("O35", "save_distributed_shard, finalize", LATER),
    Case("O35", "dcp.save: killed", "tests/test_torch_dcp_ranks.py::test_a_save_that_is_killed_anywhere_leaves_what_loads"),
    Case(
        "O35", "dcp: a copied checkpoint", "tests/test_torch_dcp.py::test_a_checkpoint_that_was_copied_elsewhere_is_complete"
    ),
    Case(
        "O35",
        "save_distributed_shard, finalize: a missing rank",
        _CHECKPOINTS + "TestCommit::test_missing_ranks_are_named_and_nothing_is_committed",
    ),
    Case("O35", "a copied checkpoint", _CHECKPOINTS + "TestCommit::test_a_copied_checkpoint_is_complete"),
    Case("O35", "SIGKILL while saving", "tests/test_checkpoint_crash.py::test_kill_at_random_moments"),
    Case("O35", "delete_checkpoint: stopped in the middle", _DELETED_BY_HALF),
    Case(
        "O36",
        "create_async_loader: row groups without rows",
        _PARQUET + "TestShapes::test_row_groups_without_rows_between_others_are_left_out",
    ),
    Case(
        "O36",
        "create_async_loader: files without row groups, _SUCCESS, .crc",
        _PARQUET + "TestShapes::test_files_without_row_groups_or_rows_give_nothing_and_what_is_no_parquet_is_left_alone",
    ),
    Case("O36", "create_async_loader: broken.parquet", _PARQUET + "TestShapes::test_a_broken_file_is_named"),
    Case(
        "O36",
        "create_async_loader: columns=[99]",
        "tests/test_parquet.py::TestOptions::test_a_column_that_does_not_exist_names_the_file_and_those_that_do",
    ),
    Case(
        "O37",
        "create_async_loader: parquet index cache",
        _PARQUET + "TestSecondEpoch::test_a_file_that_was_rewritten_is_read_anew",
    ),
    Case(
        "O37",
        "parquet_get_rg, PyParquetIndex",
        _PARQUET + "TestLookup::test_a_file_that_was_replaced_since_gives_its_new_rows",
    ),
    Case("O38", "create_tfrecord_index: a flipped bit", _TFRECORD + "test_a_flipped_bit_anywhere_names_file_and_byte"),
    Case("O38", "create_tfrecord_index: any scheme in and out", _TFRECORD + "test_an_index_is_one_line_for_each_record"),
    Case("O38", "TFRecordFile: random access", _TFRECORD + "test_a_wrong_index_and_a_damaged_record_are_errors"),
    Case("O38", "TFRecordReader: resume", _TFRECORD + "test_a_reader_goes_on_from_any_position"),
    Case(
        "O39",
        "generate_npz_bytes: zip64 records",
        "tests/test_ziplayout.py::test_zip64_records_are_there_when_they_are_needed_and_only_then",
    ),
    Case(
        "O39",
        "generate_npz_bytes: sizes and offsets over 4 GiB",
        "tests/test_ziplayout.py::test_archives_of_any_size_are_read_by_zipfile",
    ),
    Case("O39", "generate_npz_bytes: numpy.load, unzip -t", "tests/test_npz.py::test_a_large_archive_in_parallel_is_right"),
    Case("O40", "finalize_op_log", LATER),
    Case(
        "O41",
        "put_bytes, open_writer: TMPDIR",
        _LOCAL + "TestElsewhere::test_the_temporary_file_is_in_the_targets_own_directory",
    ),
    Case("O41", "put_bytes: another file system", _LOCAL + "TestElsewhere::test_another_file_system_is_no_obstacle"),
    Case("O41", "put_bytes: sticky directory", _LOCAL + "TestPermissions::test_anothers_file_in_a_sticky_directory_stays"),
    Case("O41", "put_bytes: read-only target", _LOCAL + "TestPermissions::test_a_read_only_file_is_replaced_as_rename_does"),
    Case("O41", "put_bytes, open_writer: umask 027", _LOCAL + "TestPermissions::test_the_mode_follows_the_umask"),
    Case("O41", "create_filesystem_writer, download", LATER),
    Case("O41", "dcp.save: TMPDIR", "tests/test_torch_dcp.py::test_nothing_is_written_outside_of_the_directory"),
    Case("O41", "create_filesystem_writer", _WRITERS + "test_temporary_file_in_the_targets_own_directory"),
    Case("O41", "download", LATER),
    Case("O42", "list, get: undecodable name", _LOCAL + "TestNames::test_an_undecodable_name_is_listed_and_read"),
    Case("O42", "put_bytes, get: 255-byte name", _LOCAL + "TestNames::test_the_longest_name_is_written_and_read"),
    Case("O42", "list, get: newline", _LOCAL + "TestNames::test_a_newline_in_a_name"),
    Case("O42", "list: directory without r-x", _LOCAL + "TestPermissions::test_a_directory_that_may_not_be_entered"),
    Case("O42", "list: vanished file", _LOCAL + "TestVanishing::test_a_file_that_vanishes_during_the_walk_is_left_out"),
    Case("O42", "list: links", _LOCAL + "TestLinks::test_links_that_lead_nowhere_are_left_out_of_listings"),
    Case("O42", "ObjectStoreMapDataset", LATER),
    Case("O43", "put_bytes, put_many, open_writer", _LOCAL + "TestFullDisk::test_the_old_object_stays_and_nothing_is_left"),
    Case("O43", "put_many, again after space is freed", _LOCAL + "TestFullDisk::test_after_some_space_is_freed_it_works"),
    Case("O43", "save_checkpoint, save_distributed_shard", _FAILURES + "test_a_full_disk"),
    Case("O43", "save_checkpoint: a limit on files", _FAILURES + "test_a_file_that_may_not_grow"),
    Case("O43", "download", LATER),
    Case("O43", "dcp.save", "tests/test_torch_dcp.py::test_a_full_disk_fails_the_save_and_leaves_nothing"),
    Case("O44", "put_bytes, get, get_many: any size", _DIRECT + "test_any_size_is_written_and_read_exactly"),
    Case("O44", "get, get_many: the flag is set", _DIRECT + "TestTheFlagIsSet::test_reads_go_past_the_page_cache"),
    Case("O44", "open_writer: 10 x 999 bytes", _DIRECT + "TestTheFlagIsSet::test_a_writer_of_many_pieces_writes_blocks"),
    Case(
        "O44",
        "refused: one warning",
        _DIRECT + "TestWhereItIsRefused::test_everything_works_and_one_warning_names_the_directory",
    ),
    Case("O44", "create_direct_filesystem_writer", _WRITERS + "test_many_odd_pieces_past_the_page_cache"),
    Case("O45", "list, data sets on az://", LATER),
    Case("O46", "put_bytes on gs://", LATER),
    Case("O47", "DLIO plugin", LATER),
    Case(
        "O47",
        "PyDataset",
        _STREAM + "TestDataset::test_many_objects_are_listed_in_few_requests_and_kept_in_little_memory",
    ),
    Case(
        "O47",
        "list(recursive=True) at scale on s3://",
        "tests/test_s3_faults.py::test_many_keys_are_listed_in_few_requests_and_little_memory",
    ),
)

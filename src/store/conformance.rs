//! The conformance suite: tests for every adapter. Each test takes a fresh, empty store.

mod at_once;
mod blueprints;
mod erase;
mod fixture;
mod run_lists;
mod runs;
mod state;
mod stats;
mod tables;

pub use at_once::*;
pub use blueprints::*;
pub use erase::*;
pub use fixture::*;
pub use run_lists::*;
pub use runs::*;
pub use state::*;
pub use stats::*;
pub use tables::*;

/// Declares all tests of the suite for the store that `$open` creates, as (its directory, the
/// store).
macro_rules! conformance {
    ($open:expr) => {
        $crate::store::conformance::conformance! { $open =>
            what_was_appended_is_read_back
            a_plain_write_changes_cursor_and_counters_and_a_whole_one_the_rest
            a_continued_run_has_a_current_history_and_all_of_them
            a_run_is_loaded_with_everything_that_it_is_taken_up_from
            of_a_run_is_loaded_what_is_wanted_and_no_more_than_there_is_room_for
            a_history_is_read_in_pages_that_are_bounded
            the_rows_of_all_runs_are_read_in_their_order_and_bounded
            a_window_of_a_long_history_is_read_by_its_numbers
            a_batch_whose_run_has_moved_is_refused_alone
            a_run_is_created_once
            writes_that_rest_on_a_row_fall_with_it
            nothing_is_written_with_a_revoked_token
            an_idempotency_key_is_used_once_until_it_expires
            lists_are_filtered_and_paged_newest_first
            runs_are_found_by_what_their_headers_have
            words_of_a_run_are_found_while_it_is_open_and_after_its_end
            a_page_that_looked_at_enough_rows_is_partial_and_the_next_goes_on
            due_runs_come_soonest_first_and_only_of_their_partitions
            open_runs_without_a_nonce_are_found_and_a_nonce_is_kept
            only_open_children_are_listed
            a_batch_is_seen_by_every_reader_once_it_is_acknowledged
            numbers_only_grow
            a_number_that_was_taken_is_given_to_nobody
            only_what_nothing_open_needs_is_retired
            the_bytes_of_a_run_are_its_entries_and_its_files
            room_is_measured_and_everything_is_checked
            what_retention_counts_is_less_after_each_deletion
            a_value_of_the_host_is_changed_by_who_has_seen_it
            a_task_is_replaced_and_closed
            queued_tasks_are_counted_by_queue_and_holder
            open_tasks_are_counted_by_operator_and_kind
            tasks_are_filtered_and_paged
            a_value_of_state_counts_its_revisions
            a_blob_is_given_as_what_was_stored_or_not_at_all
            a_value_in_a_journal_that_is_no_json_is_damage
            files_are_staged_and_then_published_with_their_attempt
            blueprints_are_kept_by_hash_and_found_by_name_and_prefix
            one_of_many_versions_is_found_by_its_publisher_or_by_a_part_of_its_hash
            a_revocation_outlives_everything_said_of_its_token
            an_expired_token_stays_while_it_is_needed_and_its_revocation_after_it
            signals_wait_in_order_until_they_arrive
            changes_wait_in_the_order_of_their_commits_by_scope_and_by_run
            evidence_and_meta_are_kept
            of_the_refused_reports_of_an_attempt_the_first_are_kept
            the_last_refused_reports_of_one_step_are_read_without_those_of_others
            charges_are_summed_by_token_and_stay_used_when_their_run_is_deleted
            ended_runs_are_summed_up_and_stay_counted_when_they_are_deleted
            the_most_expensive_runs_of_each_day_are_known
            what_layers_keep_expires_and_audit_lines_stay_in_order
            records_expire_a_part_at_a_time_the_oldest_first
            one_old_answer_is_forgotten_and_a_newer_one_under_its_key_is_not
            a_session_keeps_its_frames_until_they_are_acknowledged_or_it_is_closed
            a_deleted_run_leaves_nothing_and_takes_nothing_of_others
            a_text_is_found_in_every_place_and_erased_from_all_that_the_host_can_miss
            a_subject_is_found_by_its_whole_name_and_runs_of_others_that_name_it_are_listed
            a_run_is_erased_with_those_that_it_called_and_what_names_them
            the_forks_and_repetitions_of_an_erased_run_are_erased_with_it
            a_source_is_erased_with_the_last_run_that_has_it_unless_it_is_published
            of_more_runs_than_are_erased_at_a_time_the_newest_go_first
            a_key_is_taken_by_one_of_many_runs_at_once
            what_many_runs_do_to_a_value_at_once_is_all_done_once
            after_a_revocation_no_run_is_written_with_the_token
            a_run_that_is_deleted_while_it_goes_on_leaves_nothing
            a_blob_stays_while_a_file_of_some_run_has_it
            runs_that_end_at_once_are_all_counted_once
            the_batches_of_a_run_are_committed_in_their_order
            ; shared
            two_writers_of_a_value_of_the_host_lose_nothing
            what_is_missing_is_nothing_and_deleting_it_does_nothing
            any_json_is_kept_and_a_write_takes_the_place_of_the_last
            scopes_and_keys_of_any_length_and_characters_never_collide
            keys_are_listed_in_order_by_their_prefix_and_in_pages
            a_list_has_the_revisions_and_the_times_of_its_keys
            concurrent_writes_lose_nothing
            a_value_expires_and_overwriting_it_begins_anew
            a_transient_value_is_readable_until_it_is_cleared_and_never_stored
            a_transient_value_is_found_in_place_of_the_one_that_it_lies_over
            hints_are_kept_with_their_value
            a_search_finds_what_has_every_word_ranks_it_and_shows_where
            a_search_goes_on_past_what_does_not_fit_its_options
            links_are_followed_as_far_as_asked_and_go_with_their_keys
            the_links_of_a_scope_are_listed_in_their_order_and_of_no_other
            a_batch_of_state_is_made_whole_or_not_at_all
            what_has_a_receipt_is_done_once
            state_ends_with_its_run_and_its_session
            scopes_are_listed_with_what_they_hold
        }
    };
    ($open:expr => $($name:ident)* ; shared $($shared:ident)*) => {
        $(
            #[test]
            fn $name() {
                let (_dir, store) = $open;
                $crate::store::conformance::$name(&*store);
            }
        )*
        $(
            #[test]
            fn $shared() {
                let (_dir, store) = $open;
                $crate::store::conformance::$shared(store);
            }
        )*
    };
}
pub(super) use conformance;

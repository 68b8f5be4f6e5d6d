"""Which tests judge the 43 correctness traps of METHODS, part 2: what a trap is about, broken, fails each of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

TRAPS: dict[int, tuple[str, ...]] = {
    1: (
        "a gathered row's gradient counts once, beside terms that are not gathered",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
        "tests/losses/test_gather.py::test_the_gradient_of_a_row_is_the_sum_of_all_ranks_shares",
        "tests/training/test_loop.py::test_the_number_of_workers_does_not_change_the_training",
    ),
    2: (
        "the global rank, not the local one",
        "tests/losses/test_gather.py::test_all_rows_arrive_in_the_order_of_global_ranks_with_and_without_announced_sizes",
        "tests/losses/test_gather.py::test_offsets_count_the_rows_of_lower_ranks",
    ),
    3: (
        "unequal last batches",
        "tests/losses/test_gather.py::test_all_rows_arrive_in_the_order_of_global_ranks_with_and_without_announced_sizes",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
        "tests/training/test_sampler.py::test_ranks_share_out_a_global_batch_without_gap_or_overlap",
    ),
    4: (
        "the order of several hard negatives",
        "tests/data/test_prepare.py::test_hard_negatives_are_mined_once_for_translation_ranking",
        "tests/methods/test_translation_ranking.py::test_the_loss_is_the_printed_equation",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
    ),
    5: (
        "a learnable temperature",
        "tests/methods/test_contract.py::test_no_method_learns_its_temperature_scale_or_margin",
    ),
    6: (
        "gradient caching: randomness, autocast, the plain loss",
        "tests/losses/test_gradcache.py::test_cached_gradients_equal_those_of_the_plain_loss",
        "tests/losses/test_gradcache.py::test_with_dropout_the_second_run_repeats_the_first",
        "tests/losses/test_gradcache.py::test_states_of_the_second_run_have_the_dropout_of_the_first",
        "tests/methods/test_contract.py::test_gradient_caching_changes_nothing",
    ),
    7: (
        "small chunks keep every negative, and the number is logged",
        "tests/training/test_loop.py::test_gradient_caching_gives_the_gradient_of_the_whole_batch",
        "tests/training/test_loop.py::test_a_trial_learns_and_reports_at_equal_shares_of_its_pairs",
        "tests/engine/test_sweep.py::test_each_run_records_world_size_backend_and_effective_negatives",
    ),
    8: (
        "repeats of a text, in the batch, over ranks and in the queue",
        "tests/methods/test_translation_ranking.py::test_a_rows_loss_with_a_repeated_target_is_that_of_the_batch_without_it",
        "tests/methods/test_soft_contrastive.py::test_with_hard_labels_a_repeated_target_counts_once_in_the_fixed_reading_only",
        "tests/methods/test_soft_contrastive.py::test_soft_labels_never_mask_and_duplicates_are_counted",
        "tests/methods/test_ml_ctl.py::test_a_repeated_pair_is_as_if_it_were_there_once",
        "tests/methods/test_bilingual_aligner.py::test_repeats_of_a_text_are_no_negatives",
        "tests/methods/test_lealla.py::test_the_terms_are_the_printed_equations",
        "tests/methods/test_laser3_co.py::test_the_loss_is_the_printed_equation",
        "tests/losses/test_soft_loss.py::test_a_rank_with_some_rows_sees_all_columns_masks_and_its_own_candidates",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
    ),
    9: (
        "soft labels: sums, transposed columns, a teacher that nothing changes",
        "tests/losses/test_soft_loss.py::test_labels_are_rows_that_sum_to_one_and_know_their_entropy_and_column_sums",
        "tests/losses/test_soft_loss.py::test_gradients_do_not_reach_the_teacher",
        "tests/methods/test_soft_contrastive.py::test_the_loss_is_the_printed_equation",
        "tests/methods/test_contract.py::test_gradients_reach_the_student_and_neither_the_teacher_nor_the_terms",
        "tests/data/test_teacher.py::test_the_bundled_teacher_equals_sentence_transformers_in_order",
    ),
    10: (
        "labels that are nearly flat",
        "tests/methods/test_soft_contrastive.py::test_the_label_entropy_of_an_e5_like_teacher_falls_with_the_temperature",
        "tests/training/test_loop.py::test_labels_that_are_nearly_flat_are_warned_of",
    ),
    11: (
        "small temperatures and half precision stay finite",
        "tests/losses/test_soft_loss.py::test_tiles_equal_the_formula_in_value_and_gradient",
        "tests/losses/test_soft_loss.py::test_bf16_vectors_under_autocast_are_multiplied_in_fp32",
        "tests/losses/test_soft_loss.py::test_at_a_tiny_temperature_identical_and_opposite_vectors_stay_finite",
        "tests/losses/test_negative_queue.py::test_the_tiles_equal_the_plain_formula_in_value_and_gradient",
        "tests/methods/test_laser3_co.py::test_a_temperature_of_0_005_is_finite",
        "tests/methods/test_contract.py::test_a_temperature_of_5_thousandths_is_finite",
        "tests/methods/test_lealla.py::test_a_scale_of_200_is_finite",
        "tests/methods/test_ml_ctl.py::test_a_temperature_of_5_thousandths_is_finite",
    ),
    12: (
        "similarities of an evaluation are fp32",
        "tests/evaluation/test_metrics.py::test_similarities_are_fp32_whatever_the_caller_trains_with",
        "tests/models/test_encoder.py::test_encode_all_is_fp32_even_when_called_under_autocast",
    ),
    13: (
        "the queue: positives, wraparound, empty, ranks, resume",
        "tests/methods/test_laser3_co.py::test_the_positive_enters_the_queue_after_the_loss_and_the_oldest_leave",
        "tests/methods/test_laser3_co.py::test_an_empty_queue_is_refused",
        "tests/losses/test_negative_queue.py::test_the_queue_keeps_the_latest_in_order_of_arrival",
        "tests/losses/test_negative_queue.py::test_one_push_or_many_leave_the_same_queue",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
        "tests/methods/test_contract.py::test_a_saved_method_continues_bit_for_bit",
        "tests/methods/test_oracles.py::test_laser3_cos_queue_is_metric_learnings_cross_batch_memory",
        "tests/training/test_loop.py::test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit",
    ),
    14: (
        "the pre-filter and equal M",
        "tests/methods/test_laser3_co.py::test_equal_m_is_the_printed_equation_over_the_negatives_that_were_drawn",
        "tests/methods/test_laser3_co.py::test_the_filter_reads_the_teachers_similarity_strictly",
        "tests/methods/test_laser3_co.py::test_equal_m_keeps_the_least_number_and_equals_the_mask_when_all_have_it",
        "tests/methods/test_laser3_co.py::test_a_boilerplate_target_leaves_no_negative_and_no_loss",
        "tests/losses/test_negative_queue.py::test_equal_m_draws_the_same_whatever_else_is_in_the_batch",
    ),
    15: (
        "identities between losses with and without the positive below",
        "tests/methods/test_laser3_co.py::test_algorithm_1_is_log_one_plus_the_exponential_of_equation_1",
        "tests/methods/test_ml_ctl.py::test_infonce_is_log_1_plus_e_to_the_cz_nce_and_their_gradients_are_proportional",
    ),
    16: (
        "the gradient of CZ-NCE, and a single pair",
        "tests/methods/test_ml_ctl.py::test_the_gradient_of_cz_nce_is_that_of_phi_over_its_own_value",
        "tests/methods/test_ml_ctl.py::test_a_single_pair_has_no_negatives",
        "tests/methods/test_contract.py::test_negatives_are_required_where_they_are_the_method",
    ),
    17: (
        "the margin: diagonal, both directions, before the scale",
        "tests/methods/test_lealla.py::test_without_margin_ams_is_infonce_both_ways",
        "tests/methods/test_lealla.py::test_the_margin_is_taken_from_the_diagonal_alone_before_the_scale",
        "tests/methods/test_dimension_reduction.py::test_without_margin_it_is_infonce_both_ways",
        "tests/methods/test_dimension_reduction.py::test_the_loss_is_the_printed_equation",
    ),
    18: (
        "training-only heads: trained, saved, not exported",
        "tests/methods/test_lealla.py::test_the_head_is_the_methods_and_not_the_students",
        "tests/methods/test_lealla.py::test_the_variants_without_a_head_keep_what_their_export_needs",
        "tests/methods/test_ml_ctl.py::test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit",
        "tests/training/test_loop.py::test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit",
        "tests/promotion/test_export.py::test_plain_sentence_transformers_gives_our_vectors",
        "tests/methods/test_contract.py::test_any_number_of_ranks_gives_the_same_loss_terms_and_gradient",
    ),
    19: (
        "vectors that depend on padding, neighbours or precision",
        "tests/models/test_encoder.py::test_a_sentence_has_the_same_vector_alone_and_in_any_order",
        "tests/models/test_encoder.py::test_a_backbone_that_cannot_pack_runs_padded_with_the_same_invariance",
        "tests/models/test_encoder.py::test_a_sentence_without_tokens_gives_a_finite_vector_and_finite_gradients",
        "tests/models/test_encoder.py::test_mean_pooling_sums_in_fp32_whatever_the_precision",
        "tests/models/test_packing.py::test_packed_states_and_gradients_equal_the_padded_ones",
        "tests/models/test_packing.py::test_no_sentence_sees_another_one_even_where_lengths_are_equal",
    ),
    20: (
        "the pooling that a model was made with",
        "tests/models/test_encoder.py::test_pooling_equals_plain_loops",
        "tests/models/test_encoder.py::test_a_dense_layer_with_tanh_beside_the_model_is_loaded_as_labse_has_it",
        "tests/models/test_encoder.py::test_a_named_model_pools_by_its_own_pooler",
        "tests/promotion/test_export.py::test_labse_like_tanh_after_the_projection_survives_export",
        "tests/data/test_teacher.py::test_pooling_is_as_the_record_says",
        "tests/training/test_frozen.py::test_a_teacher_is_written_as_it_encodes",
    ),
    21: (
        "prompts are explicit and recorded",
        "tests/data/test_teacher.py::test_an_explicit_prompt_is_put_before_every_sentence",
        "tests/data/test_teacher.py::test_e5_in_a_path_does_nothing",
        "tests/data/test_teacher.py::test_the_models_own_default_prompt_does_nothing",
        "tests/data/test_tokens.py::test_tokenizer_keys_differ_where_tokens_would",
        "tests/promotion/test_export.py::test_plain_sentence_transformers_gives_our_vectors",
        "tests/engine/test_sweep.py::test_the_runs_record_settings_data_digests_overlaps_and_versions",
    ),
    22: (
        "truncation by teacher and student is recorded",
        "tests/data/test_teacher.py::test_max_tokens_cuts_a_sentence_and_must_fit_the_model",
        "tests/data/test_teacher.py::test_a_teacher_store_holds_each_sentence_once_in_order",
        "tests/data/test_tokens.py::test_a_token_store_equals_the_tokenizer",
        "tests/engine/test_sweep.py::test_the_runs_record_settings_data_digests_overlaps_and_versions",
    ),
    23: (
        "order after sorting by length",
        "tests/data/test_teacher.py::test_the_bundled_teacher_equals_sentence_transformers_in_order",
        "tests/models/test_encoder.py::test_encode_all_returns_vectors_in_order_and_keeps_the_training_flag",
    ),
    24: (
        "margins: k, candidates, centred vectors, direction",
        "tests/mining/test_margin.py::test_neighbourhoods_of_negative_mean_are_noticed_for_ratio_alone",
        "tests/evaluation/test_metrics.py::test_xsim_is_lasers_in_both_directions",
        "tests/evaluation/test_metrics.py::test_a_target_beyond_the_k_nearest_can_never_win",
        "tests/evaluation/test_metrics.py::test_margins_that_order_backwards_are_counted",
        "tests/evaluation/test_evaluate.py::test_a_margin_that_means_nothing_is_reported",
    ),
    25: (
        "xSIM with repeated texts and exact ties",
        "tests/evaluation/test_metrics.py::test_an_equal_text_counts_in_text_mode_only",
        "tests/evaluation/test_metrics.py::test_equal_vectors_tie_and_the_lowest_row_wins_wherever_they_stand",
        "tests/evaluation/test_metrics.py::test_the_first_largest_are_a_stable_sorts",
        "tests/evaluation/test_evaluate.py::test_an_equal_text_is_no_xsim_error_in_either_direction",
    ),
    26: (
        "neighbours that faiss and stopes make up",
        "tests/mining/test_mine.py::test_sentences_of_which_an_index_finds_too_few_are_searched_exactly",
        "tests/mining/test_tiles.py::test_k_beyond_the_candidates_is_all_of_them",
        "tests/evaluation/test_metrics.py::test_xsim_is_lasers_in_both_directions",
        "tests/evaluation/test_bucc.py::test_candidates_and_scores_are_those_of_the_published_algorithm",
    ),
    27: (
        "search in blocks equals search in one",
        "tests/mining/test_tiles.py::test_any_split_into_blocks_in_any_order_gives_the_same_as_the_whole",
        "tests/evaluation/test_metrics.py::test_blocks_change_nothing",
        "tests/data/test_negatives.py::test_mining_equals_a_search_with_plain_loops",
        "tests/models/test_packing.py::test_a_packing_lays_sentences_shortest_first_and_remembers_where_they_went",
    ),
    28: (
        "the BUCC threshold",
        "tests/evaluation/test_bucc.py::test_the_threshold_is_halfway_to_the_next_score_and_the_last_score_where_all_are_kept",
        "tests/evaluation/test_bucc.py::test_the_threshold_of_the_fit_is_applied_to_the_test",
        "tests/evaluation/test_bucc.py::test_the_threshold_gives_the_highest_f1_of_all_cuts_with_equal_scores_together",
        "tests/evaluation/test_bucc.py::test_without_a_fit_there_are_oracles_only",
    ),
    29: (
        "BUCC's ids",
        "tests/evaluation/test_bucc.py::test_a_repeated_sentence_is_no_candidate_and_takes_no_place_among_the_neighbours",
        "tests/data/test_eval_sets.py::test_the_sides_of_a_mining_set_are_read_apart_and_gold_by_its_ids",
    ),
    30: (
        "F1 is not accuracy; direction; the data's digest",
        "tests/evaluation/test_metrics.py::test_f1_is_weighted_over_the_predicted_rows_and_is_not_accuracy",
        "tests/evaluation/test_evaluate.py::test_metrics_say_task_subset_and_direction",
        "tests/engine/test_sweep.py::test_the_runs_record_settings_data_digests_overlaps_and_versions",
        "tests/data/test_prepare.py::test_another_teacher_prompt_or_other_data_is_another_digest",
        "tests/promotion/test_promote.py::test_a_sealed_test_that_has_changed_since_training_is_not_opened",
    ),
    31: (
        "averages over subsets, and what is missing from them",
        "tests/evaluation/test_evaluate.py::test_a_task_has_its_macro_mean_even_with_one_subset",
        "tests/evaluation/test_evaluate.py::test_pooled_errors_count_rows_and_macro_means_count_subsets",
        "tests/evaluation/test_evaluate.py::test_two_tasks_of_one_name_are_refused_rather_than_averaged",
        "tests/evaluation/test_evaluate.py::test_vectors_missing_for_some_texts_are_refused",
        "tests/promotion/test_promote.py::test_every_logged_metric_must_come_out_again_within_the_tolerance",
        "tests/sweeps/test_table.py::test_what_did_not_finish_and_what_repeats_a_seed_is_named_and_in_no_mean",
    ),
    32: (
        "Spearman: ties, constants, NaN",
        "tests/evaluation/test_metrics.py::test_spearman_is_scipys_with_ties",
        "tests/evaluation/test_metrics.py::test_spearman_of_nan_one_value_or_unequal_lengths",
        "tests/evaluation/test_evaluate.py::test_a_constant_encoder_fails_the_trial_and_names_the_metric",
        "tests/search/test_tune.py::test_a_trial_without_a_finite_objective_fails_a_collapsed_one_is_pruned_and_the_sweep_goes_on",
    ),
    33: (
        "k-means: starts, seeds, mean and deviation",
        "tests/evaluation/test_kmeans.py::test_the_mean_and_spread_are_over_several_seeds_of_several_starts",
        "tests/evaluation/test_kmeans.py::test_it_may_be_negative",
        "tests/evaluation/test_evaluate.py::test_clustering_scores_have_a_mean_a_spread_and_the_mean_over_subsets",
        "tests/evaluation/test_evaluate.py::test_a_clustering_score_may_be_negative_but_not_missing",
    ),
    34: (
        "contrastive accuracy of a fixed pool",
        "tests/evaluation/test_evaluate.py::test_contrastive_accuracy_is_that_of_a_fixed_pool",
    ),
    35: (
        "overlap of training text with dev and test sets",
        "tests/data/test_overlap.py::test_near_duplicates_are_those_of_brute_force",
        "tests/data/test_overlap.py::test_every_side_is_counted_the_pivots_english_too_and_a_sealed_text_is_not_told",
        "tests/data/test_corpus.py::test_a_training_pair_goes_when_either_side_is_in_a_dev_or_test_set",
        "tests/data/test_corpus.py::test_english_as_the_second_language_is_filtered_too",
        "tests/data/test_corpus.py::test_the_english_through_which_a_pivot_joined_is_filtered_in_its_own_pairs",
        "tests/data/test_corpus.py::test_sentences_of_graded_pairs_and_of_rows_beyond_a_limit_are_sealed_too",
        "tests/data/test_sources.py::test_a_key_ignores_case_punctuation_blanks_and_unicode_form",
        "tests/data/test_translation.py::test_a_pair_of_which_a_dev_set_has_either_side_is_removed",
    ),
    36: (
        "splits that share no sentence",
        "tests/data/test_corpus.py::test_a_split_holds_out_rows_of_every_language_pair_without_sharing_a_sentence",
        "tests/data/test_corpus.py::test_a_split_never_shares_a_sentence_with_training",
        "tests/data/test_corpus.py::test_components_are_those_of_plain_search",
    ),
    37: (
        "the sampler: length, ranks, epochs, resume",
        "tests/training/test_sampler.py::test_a_schedule_yields_as_many_batches_as_its_length_says_and_ends_at_its_pairs",
        "tests/training/test_sampler.py::test_ranks_share_out_a_global_batch_without_gap_or_overlap",
        "tests/training/test_sampler.py::test_every_epoch_visits_every_pair_once_in_another_order",
        "tests/training/test_sampler.py::test_any_step_can_be_asked_for_alone_so_that_a_resumed_trial_sees_the_remaining_stream",
        "tests/training/test_loop.py::test_the_number_of_workers_does_not_change_the_training",
        "tests/training/test_loop.py::test_a_resumed_trial_equals_an_uninterrupted_one_bit_for_bit",
    ),
    38: (
        "trials are compared at equal pairs seen",
        "tests/training/test_sampler.py::test_milestones_are_equal_shares_of_the_pairs_whatever_the_batch",
        "tests/training/test_loop.py::test_a_trial_learns_and_reports_at_equal_shares_of_its_pairs",
        "tests/search/test_tune.py::test_asha_stops_the_worse_trials_and_optuna_calls_them_pruned",
    ),
    39: (
        "the best of many trials flatters",
        "tests/promotion/test_statistics.py::test_the_best_of_n_equal_trials_looks_better_by_the_expected_maximum",
        "tests/promotion/test_statistics.py::test_a_shrunken_value_undoes_what_selection_gains",
        "tests/promotion/test_promote.py::test_the_card_says_what_the_run_and_the_promotion_measured",
    ),
    40: (
        "losses of different settings cannot be compared",
        "tests/spec/test_sweep_file.py::test_a_loss_is_no_objective",
        "tests/methods/test_soft_contrastive.py::test_kl_is_zero_where_the_student_copies_the_teacher_and_positive_elsewhere",
    ),
    41: (
        "word spans: words inside words, truncation, masks",
        "tests/data/test_alignment.py::test_a_lexicons_terms_are_found_once_whole_and_in_any_case",
        "tests/data/test_words.py::test_words_are_whole_runs_of_letters_marks_and_digits",
        "tests/data/test_words.py::test_a_span_is_the_tokens_that_reach_into_the_word",
        "tests/data/test_words.py::test_a_word_that_is_cut_off_has_no_span",
        "tests/methods/test_ml_ctl.py::test_masks_reach_the_contrastive_input_only_where_that_is_asked_for",
        "tests/methods/test_ml_ctl.py::test_every_span_lies_within_its_sentence_and_every_pair_without_one_is_left_out",
    ),
    42: (
        "the caller's arrays stay as they are",
        "tests/mining/test_tiles.py::test_a_row_has_the_same_bits_in_every_block_and_list_and_the_source_stays_as_it_was",
        "tests/evaluation/test_metrics.py::test_inputs_are_never_changed",
        "tests/evaluation/test_kmeans.py::test_the_same_vectors_score_the_same",
        "tests/losses/test_masked_language.py::test_of_the_chosen_tokens_80_percent_are_masked_10_random_and_10_unchanged",
        "tests/methods/test_contract.py::test_a_loss_leaves_its_batch_as_it_was",
    ),
    43: (
        "the positive logit is the row-wise product",
        "tests/methods/test_laser3_co.py::test_the_positive_logit_is_the_row_wise_product",
        "tests/methods/test_laser3_co.py::test_the_loss_is_the_printed_equation",
    ),
}
"""Of each trap, its few words and its tests."""

NOTES = {
    5: "no method learns its temperature: each is a setting",
    7: "gradients are cached, never accumulated",
    9: "a trial reads the teacher's vectors from a store and holds no teacher",
    11: "precisions are fp32 and bf16; nothing trains in fp16",
    22: "a pair with a side that is cut is counted, not left out",
    25: "`evaluate` scores on the CPU, wherever vectors were made",
    29: "gold names ids, so there is nothing to count from 0 or 1",
    35: "near-duplicates are counted, and removed where `data.overlap` is near",
}
"""Why a trap cannot occur in this code, or only in part; and what is left of it."""


def written() -> dict[str, str]:
    """Every test function of the files, not imported, with its docstring."""
    return {
        f"{path.relative_to(ROOT).as_posix()}::{node.name}": ast.get_docstring(node) or ""
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_trap_is_there_with_its_tests_or_the_reason_why_it_has_none():
    assert list(TRAPS) == list(range(1, 44))
    assert set(NOTES) <= set(TRAPS)
    for number, (words, *tests) in TRAPS.items():
        assert words
        assert tests or NOTES.get(number), f"D{number}: name its tests, or say why it cannot occur"
        assert len(set(tests)) == len(tests), f"D{number} names a test twice"


def test_every_test_that_is_named_exists():
    known = written()
    gone = [f"D{number}: {name}" for number, (_, *tests) in TRAPS.items() for name in tests if name not in known]
    assert not gone, f"no such test; what judges these now? {', '.join(gone)}"


def test_a_test_that_names_a_trap_stands_here_too():
    for name, docstring in written().items():
        for number in re.findall(r"\bD(\d+)\b", docstring):
            assert name in TRAPS[int(number)], f"{name} says D{number}"

#ifndef FLUX__API_ALIASES_H
#define FLUX__API_ALIASES_H
#include "macros.h"

/* ------------------------------------------------------------------ old names
   What flux.h 0.1 called the functions behind macros. The compiler says what each is called now,
   and version 0.2 will not know them. */
#if defined(__GNUC__) && !defined(__TINYC__)
#  define FLUX__NOW(call) \
    FLUX__SAY(GCC warning FLUX__QUOTED(call is its name now; the old one goes with flux.h 0.2))
#else
#  define FLUX__NOW(call)
#endif
#define FLUX__SAY(...) FLUX__SAY_(__VA_ARGS__)
#define FLUX__SAY_(...) _Pragma(#__VA_ARGS__)
#define FLUX__QUOTED(text) #text

#define flux_full_shape FLUX__NOW(flux_full_with) flux_full_with
#define flux_rand_shape FLUX__NOW(flux_rand_with) flux_rand_with
#define flux_randn_shape FLUX__NOW(flux_randn_with) flux_randn_with
#define flux_randint_shape FLUX__NOW(flux_randint_with) flux_randint_with
#define flux_at_shape FLUX__NOW(flux_at_with) flux_at_with
#define flux_broadcast_to_shape FLUX__NOW(flux_broadcast_to_with) flux_broadcast_to_with
#define flux_from_data FLUX__NOW(flux_from_with) flux_from_with
#define flux_borrow_data FLUX__NOW(flux_borrow_with) flux_borrow_with
#define flux_values_of FLUX__NOW(flux_values_with) flux_values_with
#define flux_summary_of FLUX__NOW(flux_summary_with) flux_summary_with
#define flux_prewarm_of FLUX__NOW(flux_prewarm_with) flux_prewarm_with
#define flux_outputsize_of FLUX__NOW(flux_outputsize_with) flux_outputsize_with
#define flux_call_all FLUX__NOW(flux_call_with) flux_call_with
#define flux_reshape_to FLUX__NOW(flux_reshape_with) flux_reshape_with
#define flux_permute_to FLUX__NOW(flux_permute_with) flux_permute_with
#define flux_flip_dims FLUX__NOW(flux_flip_with) flux_flip_with
#define flux_repeat_by FLUX__NOW(flux_repeat_with) flux_repeat_with
#define flux_pad_all FLUX__NOW(flux_pad_with) flux_pad_with
#define flux_cat_all FLUX__NOW(flux_cat_with) flux_cat_with
#define flux_stack_all FLUX__NOW(flux_stack_with) flux_stack_with
#define flux_split_by FLUX__NOW(flux_split_with) flux_split_with
#define flux_tuple_of FLUX__NOW(flux_tuple_with) flux_tuple_with
#define flux_einsum_of FLUX__NOW(flux_einsum_with) flux_einsum_with
#define flux_gradient_of FLUX__NOW(flux_gradient_with) flux_gradient_with
#define flux_optimiser_chain_of FLUX__NOW(flux_optimiser_chain_with) flux_optimiser_chain_with
#define flux_schedule_sequence_of FLUX__NOW(flux_schedule_sequence_with) flux_schedule_sequence_with
#define flux_chain_of FLUX__NOW(flux_chain_with) flux_chain_with
#define flux_parallel_of FLUX__NOW(flux_parallel_with) flux_parallel_with
#define flux_pairwisefusion_of FLUX__NOW(flux_pairwisefusion_with) flux_pairwisefusion_with
#define flux_skipconnection_of FLUX__NOW(flux_skipconnection_with) flux_skipconnection_with
#define flux_maxout_of FLUX__NOW(flux_maxout_with) flux_maxout_with
#define flux_save_items FLUX__NOW(flux_save_all_with) flux_save_all_with
#define flux_load_items FLUX__NOW(flux_load_all_with) flux_load_all_with
#define flux_save_npz_items FLUX__NOW(flux_save_npz_with) flux_save_npz_with
#define flux_sum_over FLUX__NOW(flux_sum_with) flux_sum_with
#define flux_mean_over FLUX__NOW(flux_mean_with) flux_mean_with
#define flux_var_over FLUX__NOW(flux_var_with) flux_var_with
#define flux_std_over FLUX__NOW(flux_std_with) flux_std_with
#define flux_prod_over FLUX__NOW(flux_prod_with) flux_prod_with
#define flux_max_over FLUX__NOW(flux_max_with) flux_max_with
#define flux_min_over FLUX__NOW(flux_min_with) flux_min_with
#define flux_any_over FLUX__NOW(flux_any_with) flux_any_with
#define flux_all_over FLUX__NOW(flux_all_with) flux_all_with
#define flux_norm_over FLUX__NOW(flux_norm_with) flux_norm_with
#define flux_logsumexp_over FLUX__NOW(flux_logsumexp_with) flux_logsumexp_with
#define flux_argmax_over FLUX__NOW(flux_argmax_with) flux_argmax_with
#define flux_argmin_over FLUX__NOW(flux_argmin_with) flux_argmin_with
#define flux_cumsum_over FLUX__NOW(flux_cumsum_with) flux_cumsum_with
#define flux_cumprod_over FLUX__NOW(flux_cumprod_with) flux_cumprod_with
#define flux_softmax_over FLUX__NOW(flux_softmax_with) flux_softmax_with
#define flux_logsoftmax_over FLUX__NOW(flux_logsoftmax_with) flux_logsoftmax_with
#define flux_tril_over FLUX__NOW(flux_tril_with) flux_tril_with
#define flux_triu_over FLUX__NOW(flux_triu_with) flux_triu_with
#define flux_count FLUX__NOW(flux_num_items) flux_num_items
#define flux_new_layer FLUX__NOW(flux_new_with) flux_new_with
#define flux_adjust_layer FLUX__NOW(flux_adjust_part_with) flux_adjust_part_with
#define flux_distributed_rule FLUX__NOW(flux_distributed_optimiser_with) \
    flux_distributed_optimiser_with
#define flux_diag_over FLUX__NOW(flux_diag_with) flux_diag_with

#endif /* FLUX__API_ALIASES_H */

"""Mutants of bodies and kernels: a sign, a bound, a rounding, a stride, a barrier that is missing.

Kernels run on the host: functors as C functions, whole kernels in the emulator.
"""

from __future__ import annotations

from . import mutant

_VIEWS = "test_emulated_views.py::test_views_that_run_backwards_give_what_copies_give"
_FUNCTOR = "test_functors.py::test_an_elementwise_functor_is_its_body"
_SUMS = "test_emulated.py::test_a_form_adds_up_in_any_order_of_threads"
_GATHER = "test_emulated.py::test_gather_moves_what_is_asked_for"
_ENTROPY = "test_emulated_cross_entropy.py"
_MIXED = ("test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads"
          "[mixed norm-bfloat16]")  # fmt: skip
_DROPPED = ("test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads"
            "[softmax dropout-bfloat16]")  # fmt: skip
_TURNS = "test_functors.py::test_pairs_turn"

_NUMBERS = "test_random.py::test_a_kernel_numbers_elements_as_they_lie_in_the_whole"
_STATES = "test_optimisers.py::test_a_kernel_reads_and_writes_states_as_they_are"
_SORTED = "test_emulated_embedding.py::test_a_long_index_is_sorted"
_JOINED = "test_emulated_scatter_reduce.py::test_elements_are_joined"
_BAGS = "test_emulated_bags.py::test_bags_are_joined_and_shared"
_SENT = "test_emulated_permute.py::test_rows_are_sent_and_taken_back"

MUTANTS = (
    mutant(
        "what is normalised is rounded before it is scaled", "cuda_src/norm.cu",
        "if constexpr (sizeof(T) < sizeof(A)) {", "if constexpr (sizeof(T) > sizeof(A)) {",
        "test_emulated_casting.py::test_what_is_normalised_is_rounded_before_it_is_scaled[bfloat16]",
    ),
    mutant(
        "an offset is added to the weight", "cuda_src/norm.cu",
        "return weight + A(offset);", "return weight;",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "a run-time value in memory is widened", "cuda_src/common/reading.cuh",
        "struct Taken<f32> { using type = f64; }", "struct Taken<f32> { using type = f32; }",
        "test_emulated_values.py::test_a_value_in_memory_is_the_number[rms_norm]",
    ),
    mutant(
        "numbers beside run-time values in memory stay", "cuda_src/common/reading.cuh",
        "*reinterpret_cast<u64*>(to) = *reinterpret_cast<const u64*>(from);", "",
        "test_emulated_values.py::test_a_value_in_memory_is_the_number[cross_entropy]",
    ),
    mutant(
        "elements of a vector have words of their own", "cuda_src/common/philox.cuh",
        "i & 1 || behind ?", "behind ?", f"{_NUMBERS}[float32-dense]",
    ),
    mutant(
        "a vector of four has its half of a counter", "cuda_src/common/philox.cuh",
        "if constexpr (N < 8) rotate<2>(four, number & 4);", "", f"{_NUMBERS}[float32-dense]",
    ),
    mutant(
        "the assembler leaves each element of a row its word", "cuda_src/common/philox.cuh",
        "u32 bits = 0;", "const Cutoff stays = cutoff(); u32 bits = 0;",
        "test_kernels.py::test_the_assembler_leaves_no_element_without_its_word"
        "[softmax_dropout-lanes_c0_steps-4-sm_90]",
    ),
    mutant(
        "a vector of eight takes whole words of two counters", "cuda_src/common/philox.cuh",
        "counted((number >> 2) + (first >> 2), place, four);", "counted(number >> 2, place, four);",
        "test_random.py::test_a_kernel_draws_the_numbers_of_the_body[uniform-bfloat16-dense]",
    ),
    mutant(
        "elements of an example share its word", "cuda_src/common/philox.cuh",
        "UNROLL for (int i = 0; i < N; ++i) words[i] = one[0];",
        "Stream::draw(number, words, place);",
        "test_random.py::test_a_kernel_drops_examples[(9, 3, 8)-row]",
    ),
    mutant(
        "each group of eight has a counter of its own", "cuda_src/common/philox.cuh",
        "counted(number >> 3, place, four);", "counted(0, place, four);",
        f"{_NUMBERS}[bfloat16-dense]",
    ),
    mutant(
        "each array of a list has random words of its own", "cuda_src/common/philox.cuh",
        "offset + (place << 32)", "offset",
        "test_lists.py::test_a_launch_numbers_the_elements_of_each_array",
    ),
    mutant(
        "elements of later chunks are numbered on", "cuda_src/common/lists.cuh",
        "step<1>(own, f, whole, count, u64(begin), stream);",
        "step<1>(own, f, whole, count, 0, stream);",
        "test_lists.py::test_a_launch_numbers_the_elements_of_each_array",
    ),
    mutant(
        "a number of float16 below 2^-14 is rounded to its own steps",
        "cuda_src/common/stochastic.cuh", "size < 0x38800000u ?", "size < 0u ?",
        "test_stochastic_rounding.py::test_every_library_and_the_kernel_round_as_the_definition_says[float16]",
    ),
    mutant(
        "an offset is part of the counter", "cuda_src/common/philox.cuh",
        "c = u32(stream), d = u32(stream >> 32);", "c = 0, d = 0;", f"{_NUMBERS}[float32-dense]",
    ),
    mutant(
        "elements are numbered as in C order", "backends/cuda/schedules/elementwise.py",
        "first, strides, one=bool(shared)", "first, operands[0].strides, one=bool(shared)",
        f"{_NUMBERS}[float32-padded]",
    ),
    mutant(
        "where nothing stays no product is infinite", "cuda_src/common/philox.cuh",
        "A(p < 1 ? 1 - p : 1)", "A(1 - p)", _DROPPED,
    ),
    mutant(
        "shares are numbered as in C order", "backends/cuda/schedules/rows.py",
        "each += [without(numbers_of(shape, call.problem.options)[0], axis)] * numbered",
        "each += [without(of.loads[0].strides, axis)] * numbered",
        _DROPPED,
    ),
    mutant(
        "a kernel begins where its part does", "cuda_src/common/elementwise.cuh",
        "if constexpr (NUMBERED) return u64(args.first);", "",
        "test_random.py::test_a_part_has_the_words_of_its_places[whole0-first0-end0]",
    ),
    mutant(
        "vectors of a part lie within one counter", "backends/cuda/schedules/elementwise.py",
        "Operand(-1, 0 if shared else first, strides", "Operand(-1, 0, strides",
        "test_random.py::test_a_part_has_the_words_of_its_places[whole1-first1-end1]",
    ),
    mutant(
        "of long rows too only some shares stay", "cuda_src/common/rows.cuh",
        "finish(args, row, e, v, c, kept_and_left(args, row, e), known, t);",
        "finish(args, row, e, v, c, kept(args, row, e) | FULL << V, known, t);",
        _DROPPED,
    ),
    mutant(
        "a dropped cotangent does not pull", "cuda_src/softmax.cu",
        "along = fused(keep >> i & 1 ? e : A(0), keep >> (N + i) & 1 ? x[0][i] : A(0), along);",
        "along = fused(keep >> i & 1 ? e : A(0), x[0][i], along);",
        _DROPPED,
    ),
    mutant(
        "the gradient of a biased share is scaled", "cuda_src/softmax.cu",
        "UNROLL for (int i = 0; i < N; ++i) y[0][i] *= A(this->factor);", "",
        _DROPPED,
    ),
    mutant(
        "wide states are read in pieces", "cuda_src/common/elementwise.cuh",
        "load<WIDTH>(p + j * WIDTH)", "load<WIDTH>(p)", f"{_STATES}[adamw-float32]",
    ),
    mutant(
        "the gradient of a gate has its sign", "cuda_src/gated.cu",
        "d[1] = dy * a * v.second;", "d[1] = -(dy * a * v.second);",
        "test_functors.py::test_an_elementwise_functor_is_its_body[SwigluBackward-f32]",
    ),
    mutant(
        "a gate that is closed has no gradient", "cuda_src/gated.cu",
        "d[1] = closed ? A(0) : dy * a;", "d[1] = dy * a;",
        "test_functors.py::test_an_elementwise_functor_is_its_body[RegluBackward-f32]",
    ),
    mutant(
        "NaN passes a gate", "cuda_src/gated.cu",
        "y[0] = x[0] * (b <= 0 ? A(0) : b);", "y[0] = x[0] * (b > 0 ? b : A(0));",
        "test_functors.py::test_an_elementwise_functor_is_its_body[Reglu-f32]",
    ),
    mutant(
        "rope turns forwards", "cuda_src/rope.cu",
        "c = fused(a, angle.first, -(b * angle.second));",
        "c = fused(a, angle.first, b * angle.second);",
        "test_functors.py::test_pairs_turn[Rope-1-f32]",
    ),
    mutant(
        "rope's gradient turns back", "cuda_src/rope.cu",
        "d = fused(b, angle.first, -(a * angle.second));",
        "d = fused(b, angle.first, a * angle.second);",
        "test_functors.py::test_pairs_turn[RopeBackward--1-f32]",
    ),
    mutant(
        "negative positions turn back in float64", "cuda_src/common/angles.cuh",
        "return i64(position < 0 ? 0 - turn : turn);", "return i64(turn);",
        "test_emulated_rope.py::test_positions_of_both_signs_turn_as_the_body_does"
        "[rope-float64-16-options0]",
    ),
    mutant(
        "keys are added to where that is asked for", "cuda_src/common/rotate.cuh",
        "} else if (ADD >> side & 1) {", "} else if (ADD & 1) {",
        "test_emulated_rope.py::test_queries_and_keys_of_other_numbers_of_heads_turn_in_one_launch"
        "[rope_qk-float64]",
    ),
    mutant(
        "cosines are multiplied by the attention factor", "cuda_src/common/angles.cuh",
        "angle[i] = {one.first * kept.factor,", "angle[i] = {one.first,",
        "test_emulated_rope.py::test_positions_of_both_signs_turn_as_the_body_does"
        "[rope-float64-8-options3]",
    ),
    mutant(
        "a position without a row turns to 0", "cuda_src/common/angles.cuh",
        "v[k][j] = Vec<C, W>{};", "v[k][j] = load<W>(from.table[k]);",
        "test_emulated_rope.py::test_a_position_without_a_row_is_reported_and_turns_to_0",
    ),
    mutant(
        "of two entries for a pair the first counts", "backends/cuda/schedules/rope.py",
        "t.strides[-1] * (2 if twice else 1)", "t.strides[-1]",
        "test_emulated_rope.py::test_rows_turn_by_tables_as_the_body_does"
        "[16-rope_with_tables_backward-float16-float16-options1]",
    ),
    mutant(
        "what is not rotated passes through", "cuda_src/common/rotate.cuh",
        "const int count = turning || start + V <= args.end ? V : int(args.end - start);",
        "const int count = V;",
        "test_emulated_rope.py::test_positions_of_both_signs_turn_as_the_body_does"
        "[rope-float32-11-options2]",
    ),
    mutant(
        "the tail of vectors is computed", "cuda_src/common/elementwise.cuh",
        "item < args.items + args.tail)", "item < args.items)",
        "test_emulated_views.py::test_what_does_not_fill_a_vector_is_computed_and_nothing_behind_it"
        "[1]",
    ),
    mutant(
        "nothing behind the tail is written", "cuda_src/common/elementwise.cuh",
        "item < args.items + args.tail)", "item < args.items + args.tail + 1)",
        "test_emulated_views.py::test_what_does_not_fill_a_vector_is_computed_and_nothing_behind_it"
        "[1]",
    ),
    mutant(
        "walks follow the strides of each operand", "cuda_src/common/index.cuh",
        "at[k] += here * stride[d][k];", "at[k] += here * stride[d][0];",
        f"{_VIEWS}[loss.cu]",
    ),
    mutant(
        "runs follow the strides of each operand", "cuda_src/common/index.cuh",
        "at[k] = I(row) * stride[k] + I(column) * V;",
        "at[k] = I(row) * stride[0] + I(column) * V;",
        f"{_VIEWS}[gated.cu]",
    ),
    mutant(
        "what is there is added to in the accumulate type", "cuda_src/common/vec.cuh",
        "x[i] += old[i];", "x[i] = old[i];",
        "test_emulated.py::test_a_form_adds_to_what_is_there[float32-fixed point]",
    ),
    mutant(
        "an output is added to where its own bit is set", "cuda_src/common/elementwise.cuh",
        "const bool adds = ADD >> k & 1;", "const bool adds = ADD & 1;",
        "test_emulated_outputs.py",
    ),
    mutant(
        "a sum is delivered as its own bits say", "cuda_src/common/vec.cuh",
        "HOW >> 2 * k & 3", "HOW & 3",
        "test_emulated_outputs.py",
    ),
    mutant(
        "16 bits are widened from their own half", "cuda_src/common/vec.cuh",
        "const u16 bits = u16(i % 2 ? pair[i / 2] >> 16 : pair[i / 2]);",
        "const u16 bits = u16(pair[i / 2]);",
        "test_emulated.py::test_the_width_of_an_access_changes_no_bits_of_a_tile[float16]",
    ),
    mutant(
        "kernels drop a negative index", "cuda_src/common/report.cuh",
        "return u64(i64(i)) < u64(n);", "return i64(i) < n;",
        f"{_GATHER}[float32-odd rows-straight]",
    ),
    mutant(
        "kernels drop the index at the extent", "cuda_src/common/report.cuh",
        "return u64(i64(i)) < u64(n);", "return u64(i64(i)) <= u64(n);",
        f"{_GATHER}[float32-odd rows-straight]",
    ),
    mutant(
        "a report has the place of the index", "cuda_src/common/report.cuh",
        "to->position = position;", "to->position = 0;",
        "test_emulated.py::test_the_place_of_an_index_out_of_range_is_reported"
        "[a row in a tile-float32]",
    ),
    mutant(
        "a report is ready when it is written", "cuda_src/common/report.cuh",
        "*reinterpret_cast<volatile u32*>(&to->state) = 2;", "",
        "test_emulated.py::test_the_place_of_an_index_out_of_range_is_reported"
        "[a row in a tile-float32]",
    ),
    mutant(
        "gather reads each element with its own index", "cuda_src/indexed/gather.cuh",
        "const P i = index[d].get(v);", "const P i = index[d].get(0);",
        "test_emulated.py::test_gather_moves_what_is_asked_for[float32-a row in a tile-straight]",
    ),
    mutant(
        "gather waits for the bins of a tile", "cuda_src/indexed/gather.cuh",
        "    copied();\n    __syncthreads();\n", "    copied();\n",
        "test_emulated.py::test_gather_moves_what_is_asked_for[float32-rows in a tile-tiles]",
    ),
    mutant(
        "what is out of range of a tile is 0", "cuda_src/indexed/gather.cuh",
        "cells[tile.behind(lane)] = T{};", "",
        f"{_GATHER}[float32-odd rows-tiles]",
    ),
    mutant(
        "one bin for a warp has the warp's sum", "cuda_src/indexed/scatter.cuh",
        "if (together) x = warp_sum(x);", "", f"{_SUMS}[float32-atomics, one bin]",
    ),
    mutant(
        "few a row: bins are those of the row", "cuda_src/indexed/scatter.cuh",
        "if (local == v) x[v] += value;", "if (local >= u64(v)) x[v] += value;",
        f"{_SUMS}[float32-few a row]",
    ),
    mutant(
        "few a row: every element counts", "cuda_src/indexed/scatter.cuh",
        "for (u32 k = 0; k < args.length; ++k) {", "for (u32 k = 1; k < args.length; ++k) {",
        f"{_SUMS}[float32-few a row]",
    ),
    mutant(
        "sums at a scale are rounded to nearest", "cuda_src/indexed/fixed.cuh",
        "word[0] = __double2ll_rn(f64(x) * __hiloint2double((1023 + exponent(key, bits)) << "
        "20, 0));",
        "word[0] = i64(f32(f64(x) * __hiloint2double((1023 + exponent(key, bits) - 30) << 20, 0)))"
        " << 30;",
        "test_emulated.py::test_a_form_adds_up_in_any_order_of_threads[float32-fixed point]",
    ),
    mutant(
        "a block joins all its warps", "cuda_src/common/reduce.cuh",
        "for (u32 i = 1; i < blockDim.x / 32; ++i) x += part[i];",
        "for (u32 i = 2; i < blockDim.x / 32; ++i) x += part[i];",
        "test_emulated_losses.py::test_losses_are_those_of_the_body[binary_cross_entropy-bfloat16]",
    ),
    mutant(
        "a block waits for the sums of its warps", "cuda_src/common/reduce.cuh",
        "if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;\n  __syncthreads();\n",
        "if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;\n",
        "test_emulated_losses.py::test_losses_are_those_of_the_body[binary_cross_entropy-bfloat16]",
    ),
    mutant(
        "rows of a block wait for each other", "cuda_src/common/reduce.cuh",
        "if (lane == 0) room[threadIdx.x / 32] = s;\n  __syncthreads();\n",
        "if (lane == 0) room[threadIdx.x / 32] = s;\n",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "the tail of a sum is added", "cuda_src/common/total.cuh",
        "item < args.items + args.tail) {", "item < args.items) {",
        "test_emulated_losses.py::test_losses_are_those_of_the_body[binary_cross_entropy-float32]",
    ),
    mutant(
        "a mean is the share of all", "cuda_src/common/total.cuh",
        "{ return f64(sum) * share; }", "{ return f64(sum); }",
        "test_emulated_losses.py::test_losses_are_those_of_the_body[binary_cross_entropy-bfloat16]",
    ),
    mutant(
        "the loss of an element has its weight", "cuda_src/divergence.cu",
        "y[0] *= x[AT];", "y[0] *= x[AT - 1];",
        "test_emulated_losses.py::test_losses_are_those_of_the_body[binary_cross_entropy-float32]",
    ),
    mutant(
        "a weight of positive targets bends the curve too", "cuda_src/divergence.cu",
        "fused(off + on, logarithm_1p_exponential", "fused(A(1), logarithm_1p_exponential",
        "test_emulated_losses.py::test_losses_are_those_of_the_body"
        "[binary_cross_entropy_with_logits-float32]",
    ),
    mutant(
        "the end of a row is its end", "cuda_src/common/row.cuh",
        "if (e + i < end) v.set(i, p[offset<ACCESS>(e + i, step)]);",
        "if (e + i <= end) v.set(i, p[offset<ACCESS>(e + i, step)]);",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "a mask leaves elements out", "cuda_src/common/row.cuh",
        "keep = keep && args.beside[row.at[NUMBER] + (e + i) * args.step[NUMBER]];", "",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[softmax-bfloat16]",
    ),
    mutant(
        "long rows are read to their end", "cuda_src/common/rows.cuh",
        "for (i32 e = (row.rank + HELD * row.lanes) * V; e < row.end; e += row.lanes * V) {\n"
        "        Some v[IN];\n        A c[COLUMNS + 1][V];\n        fetch_all(args, row, "
        "e, v);\n"
        "        columns(args, row, held, 0, e, c);\n        take",
        "for (i32 e = (row.rank + HELD * row.lanes) * V; e < row.end - V; e += row.lanes * V) {\n"
        "        Some v[IN];\n        A c[COLUMNS + 1][V];\n        fetch_all(args, row, "
        "e, v);\n"
        "        columns(args, row, held, 0, e, c);\n        take",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "a row around a bad guess is gone through again", "cuda_src/norm.cu",
        "return shift * shift <= A(4) * variance;", "return true;",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "what is narrower than rows lies by its own size", "cuda_src/common/row.cuh",
        "if (narrower) narrow = baracuda::fetch<V, ACCESS>(other + at, step, e, end);",
        "if (narrower) narrow = baracuda::fetch<V, ACCESS>(other + at / 2, step, e, end);",
        _MIXED,
    ),
    mutant(
        "a lane finds its part of a narrower streamed row", "cuda_src/common/streamed_rows.cuh",
        "load<V>(all + lane * V + h * 32 * V)", "load<V>(all + h * 32 * V)", _MIXED,
    ),
    mutant(
        "streamed rows lie behind the columns on chip", "cuda_src/common/streamed_rows.cuh",
        "reinterpret_cast<C*>(memory) + Columns::size()", "memory", _MIXED,
    ),
    mutant(
        "each piece of a column on chip has a place", "cuda_src/common/streamed_rows.cuh",
        "(k * HELD + h) * PIECES + j", "(k * HELD + h) * PIECES", _MIXED,
    ),
    mutant(
        "eps is under the root", "cuda_src/norm.cu",
        "inverse = inverse_root(variance + eps);", "inverse = inverse_root(variance) + eps;",
        "test_emulated_rows.py::test_rows_are_the_body_in_any_order_of_threads[norm-float32]",
    ),
    mutant(
        "logits that are largest come first", "cuda_src/cross_entropy.cu",
        "s.at[1] *= quick_exponential(s.at[0] - Rows::base(most));",
        "s.at[1] *= quick_exponential(Rows::base(most) - s.at[0]);",
        "test_emulated_cross_entropy.py::test_every_way_gives_what_the_body_gives"
        "[a lane-cross_entropy]",
    ),
    mutant(
        "a student near its teacher costs what a series says", "cuda_src/kl_div.cu",
        "magnitude(log) < A(2) ? p * exponential_excess(log) : far;", "far;",
        "test_emulated_kl_div.py::"
        "test_of_a_student_that_is_all_but_its_teacher_no_digits_cancel[forward]",
    ),
    mutant(
        "rows of weight 0 are not read", "cuda_src/kl_div.cu",
        "const bool counts = exists && weight != 0;", "const bool counts = exists;",
        "test_emulated_kl_div.py::test_every_way_gives_what_torch_gives"
        "[lanes of more axes, reverse-kl_div_with_logits]",
    ),
    mutant(
        "a class that a teacher has twice is taken off once", "cuda_src/topk_kl_div.cu",
        "taught += prob_of(args, at, i);", "taught = prob_of(args, at, i);",
        "test_emulated_topk_kl_div.py::test_every_way_gives_what_torch_gives"
        "[lanes of more axes-topk_kl_div_with_logits_with_gradient]",
    ),
    mutant(
        "slopes of a teacher's classes are written over those of all", "cuda_src/topk_kl_div.cu",
        "    else if constexpr (Rows::BY_BLOCK) __syncthreads();\n", "",
        "test_emulated_topk_kl_div.py::test_gradients_may_be_written_over_logits[a block]",
    ),
    mutant(
        "a teacher's classes are added to what was there", "cuda_src/topk_kl_div.cu",
        "slope += args.seen[place + args.rows * args.k];", "slope += A(0);",
        "test_emulated_topk_kl_div.py::test_gradients_add_into_what_is_there[lanes]",
    ),
    mutant(
        "windows keep within the array", "cuda_src/common/window.cuh",
        "column + kw <= w ? kw : w - column};", "kw};", f"{_VIEWS}[pooling.cu]",
    ),
    mutant(
        "windows out of the fast range are computed with care", "cuda_src/common/window.cuh",
        "if (!odd || !any_extreme(args, x, h, column)) return;", "return;",
        "test_emulated_pooling.py::test_windows_out_of_the_fast_range_are_those_of_the_body"
        "[clipped-2]",
    ),
    mutant(
        "windows beyond the end are not written", "cuda_src/common/window.cuh",
        "if (own + v >= args.windows_w) continue;", "",
        "test_emulated_pooling.py::test_windows_out_of_the_fast_range_are_those_of_the_body"
        "[clipped-2]",
    ),
    mutant(
        "a window's slope has the sign of its cell", "cuda_src/pooling.cu",
        "return x == 0 ? A(0) : x < 0 ? -raised : raised;", "return x == 0 ? A(0) : raised;",
        "test_functors.py::test_pooling",
    ),
    mutant(
        "only the largest cell of a window has its gradient", "cuda_src/pooling.cu",
        "return size == y ? sign * (dy / ties) : A(0);", "return sign * dy;",
        "test_functors.py::test_pooling",
    ),
    mutant(
        "rows without a token are zeros", "cuda_src/indexed/permute.cuh",
        "__ballot_sync(~0u, entries != 1)", "__ballot_sync(~0u, entries > 1)",
        _SENT + "[padded-bfloat16]",
    ),
    mutant(
        "each choice of a token has its own weight", "cuda_src/indexed/permute.cuh",
        "order[i] - token * args.choices.size;", "0;",
        _SENT + "[some rows often-bfloat16]",
    ),
    mutant(
        "the last of several elements stays", "cuda_src/indexed/tell.cuh",
        "else atomicMax(state, x);", "else *state = x;",
        "test_emulated_index_add.py::test_the_last_of_several_elements_stays[numbers-float32]",
    ),
    mutant(
        "a row is numbered among all", "cuda_src/indexed/few_rows.cuh",
        "base += b < blockIdx.x ? count : 0;", "base += 0;",
        "test_emulated_few_rows.py::test_rows_are_found_and_added_up[3-ids of two axes-float32]",
    ),
    mutant(
        "who has no row adds to none", "cuda_src/indexed/few_rows.cuh",
        "u64(row) < u64(args.extent) && row != args.skipped", "u64(row) < u64(args.extent)",
        "test_emulated_few_rows.py::test_rows_are_found_and_added_up[3-ids in a row-float32]",
    ),
    mutant(
        "entries of a row keep their order", "cuda_src/indexed/sort_index.cuh",
        "place[e] = old + __popc(earlier);", "place[e] = old + __popc(same & ~earlier) - 1;",
        _SORTED + "[uniform-300]",
    ),
    mutant(
        "entries out of range are reported, and sorted behind the last row",
        "cuda_src/indexed/sort_index.cuh",
        "valid(given[e], args.extent, args.listener, args.ticket, i64(k) * args.columns);", "",
        _SORTED + "[ends-3000]",
    ),
    mutant(
        "a narrow row has its own list", "cuda_src/indexed/lists.cuh",
        "(group >> args.dealt.shift) + lane / OWN * apart;", "(group >> args.dealt.shift);",
        "test_emulated_segments.py::test_rows_of_segments_are_reduced[numbers-bfloat16]",
    ),
    mutant(
        "each row of a window is loaded", "cuda_src/indexed/lists.cuh",
        "element, lesser(i + j, here - 1));\n          taken", "element, i);\n          taken",
        "test_emulated_embedding.py::test_rows_are_added_up_in_any_layout"
        "[None-ids of two axes-bfloat16]",
    ),
    mutant(
        "the density falls as its exponential does", "cuda_src/common/math.cuh",
        "tail, e * 0.39894228f};", "tail, 0.39894228f};",
        "test_functors.py::test_gelu_beside_another_input_loses_hundredths_of_a_unit[float16]",
    ),
    mutant(
        "the bag of an entry is the last that begins before it", "cuda_src/indexed/bags.cuh",
        "edge(at, middle) <= entry;", "edge(at, middle) < entry;",
        _BAGS + "[sum-offsets-bfloat16]",
    ),
    mutant(
        "before the first offset is the first bag", "cuda_src/indexed/bags.cuh",
        "if (bag == 0) return 0;", "if (bag > bags) return 0;", _BAGS + "[sum-late-float32]",
    ),
    mutant(
        "padding is in no bag", "cuda_src/indexed/bags.cuh",
        "first + j < end && sizes.counts(row[j]);",
        "first + j < end && within(row[j], sizes.extent);", _BAGS + "[mean-rows-bfloat16]",
    ),
    mutant(
        "a share is divided by the rows that count", "cuda_src/indexed/bags.cuh",
        "if (!sizes.counts(row)) continue;\n      A own[V] = {};\n      if",
        "A own[V] = {};\n      if", _BAGS + "[mean-rows-bfloat16]",
    ),
    mutant(
        "a row of padding has no weight", "cuda_src/indexed/bags.cuh",
        "at < sizes.columns && sizes.counts(row)",
        "at < sizes.columns && u64(row) < u64(sizes.extent)",
        _BAGS + "[sum weighted-rows-float32]",
    ),
    mutant(
        "what is there counts in a mean", "cuda_src/indexed/combine.cuh",
        "u32 count = 1;", "u32 count = 0;",
        _JOINED + "[in memory-mean True-rows-float32]",
    ),
    mutant(
        "what is there counts in a mean on chip", "cuda_src/indexed/tell.cuh",
        "State x = S == ONES;", "State x = 0;", _JOINED + "[on chip-mean True-rows-float32]",
    ),
    mutant(
        "NaN is above all numbers", "cuda_src/indexed/tell.cuh",
        "return x != x ? ~0u : bits >> 31", "return bits >> 31",
        _JOINED + "[in memory-min False-rows-float32]",
    ),
    mutant(
        "states on chip wait for all entries", "cuda_src/indexed/tell.cuh",
        "refuse(args, at, I(begin), I(together));\n    __syncthreads();",
        "refuse(args, at, I(begin), I(together));",
        "test_emulated_scatter_reduce.py::test_each_thread_has_several_entries_of_a_lane[max-many]",
    ),
    mutant(
        "entries of a warp that have one place count once", "cuda_src/indexed/tell.cuh",
        "if (threadIdx.x & 31) x = 0;", "",
        "test_emulated_scatter_reduce.py::test_each_thread_has_several_entries_of_a_lane[mean-one]",
    ),
    mutant(
        "lanes on chip have states of their own", "cuda_src/indexed/tell.cuh",
        "own = lane * args.step_lane;", "own = 0;",
        _JOINED + "[on chip-max True-whole columns-float32]",
    ),
)  # fmt: skip

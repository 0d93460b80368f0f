"""Mutants of what runs everywhere: plans and their cache, checks, bodies, frameworks, pages."""

from __future__ import annotations

from . import mutant

_CACHE = (
    mutant(
        "a saved plan cache is there at once or not at all", "calls/cache.py",
        "os.replace(whole, target)", "target.write_text(text, encoding='utf-8')",
        "test_cache_files.py::test_a_file_is_replaced_at_once_or_stays",
    ),
    mutant(
        "a saved file keeps its mode", "calls/cache.py",
        "whole.chmod(stat.S_IMODE(target.stat().st_mode))", "pass",
        "test_cache_files.py::test_a_file_keeps_its_mode_and_its_place",
    ),
    mutant(
        "a link to the file of plans stays a link", "calls/cache.py",
        "target = Path(os.path.realpath(path))", "target = Path(path)",
        "test_cache_files.py::test_a_file_keeps_its_mode_and_its_place",
    ),
    mutant(
        "records that were not used are saved", "calls/cache.py",
        "choices = dict(records)", "choices = {}",
        "test_cache_files.py::test_records_that_were_not_used_are_saved_again",
    ),
    mutant(
        "loaded records are bounded", "calls/cache.py",
        "for key in list(self._records)[: -self._maxsize or None]:", "for key in ():",
        "test_cache_files.py::test_as_many_records_are_kept_as_plans",
    ),
    mutant(
        "of one file no more records are taken than fit", "calls/cache.py",
        "[-self._maxsize :]) if self._maxsize else {}", ")",
        "test_cache_files.py::test_as_many_records_are_kept_as_plans",
    ),
    mutant(
        "a record of another version is not taken", "calls/cache.py",
        "if sku.version != __version__:", "if False:",
        "test_cache_files.py::test_only_records_that_can_be_used_are_counted[another version]",
    ),
    mutant(
        "a record that contradicts its problem is not taken", "calls/cache.py",
        "if has not in may:", "if False:",
        "test_cache_files.py::test_only_records_that_can_be_used_are_counted[another op]",
    ),
    mutant(
        "a loaded choice that cannot be made falls back", "calls/cache.py",
        "except (ValueError, NotImplementedError) as error:", "except KeyError as error:",
        "test_errors.py::test_records_that_no_longer_fit_are_ignored_and_logged",
    ),
    mutant(
        "the plan cache is bounded", "calls/cache.py",
        "if len(self._entries) <= self._maxsize:", "if True:",
        "test_cache.py::test_the_least_recently_used_plan_goes_first",
    ),
    mutant(
        "the least recently used plan goes first", "calls/cache.py",
        "self._clock = entry.used = self._clock + 1", "pass",
        "test_cache.py::test_the_least_recently_used_plan_goes_first",
    ),
    mutant(
        "spellings of a problem are bounded", "calls/cache.py",
        "if len(entry.aliases) < _MOST_ALIASES:", "if True:",
        "test_cache.py::test_spellings_of_a_problem_are_bounded",
    ),
    mutant(
        "a plan that goes takes its spellings along", "calls/cache.py",
        "self._aliases.pop(alias, None)", "pass",
        "test_cache.py::test_a_full_cache_drops_a_sixteenth_at_once",
    ),
    mutant(
        "threads that miss together make one plan", "calls/cache.py",
        "pending = self._pending.get(key)", "pending = None",
        "test_cache.py::test_threads_that_miss_together_make_one_plan",
    ),
    mutant(
        "a signal handler does not wait for its own thread", "calls/cache.py",
        "if pending is None or pending.maker == me:", "if pending is None:",
        "test_concurrency.py::test_a_plan_may_be_asked_for_by_whom_is_making_it",
    ),
    mutant(
        "who waits for a plan makes it where its maker was interrupted", "calls/cache.py",
        "            if plan is not None:\n                return plan\n",
        "            return plan\n",
        "test_concurrency.py::test_who_waits_for_a_plan_is_not_interrupted_with_its_maker",
    ),
    mutant(
        "a plan that a failed load caused is not kept", "calls/cache.py",
        "if not plan.provisional:", "if True:",
        "test_concurrency.py::test_a_choice_that_a_failed_load_caused_is_not_kept",
    ),
    mutant(
        "backends that come and go take hold of planned calls", "calls/cache.py",
        "self.generation += 1", "self.generation += 0",
        "test_plans.py::test_backends_that_come_and_go_take_hold_of_calls_that_were_planned",
    ),
    mutant(
        "plans in the making are forgotten in a child", "calls/cache.py",
        "Guard(self._pending.clear)", "Guard()",
        "test_concurrency.py::test_every_lock_is_free_in_a_child_and_no_plan_is_waited_for",
    ),
    mutant(
        "a child has locks of its own", "forks.py",
        "    for guard in list(_guards):\n        guard.renew()\n", "",
        "test_concurrency.py::test_every_lock_is_free_in_a_child_and_no_plan_is_waited_for",
    ),
    mutant(
        "a fork waits for imports", "forks.py",
        "_moving.wait_for(lambda: _importing.keys() <= own, _PATIENCE)", "own.clear()",
        "test_concurrency.py::test_a_fork_waits_for_the_imports_of_other_threads",
    ),
    mutant(
        "locks are reentrant", "forks.py",
        "        self.lock = threading.RLock()\n        self._renewed",
        "        self.lock = threading.Lock()\n        self._renewed",
        "test_concurrency.py::test_a_lock_may_be_taken_again_by_who_has_it",
    ),
    mutant(
        "a child has a pool of its own", "backends/numpy/blocks.py",
        "_pool_guard = Guard(_forget_pool)", "_pool_guard = Guard()",
        "test_cache.py::test_a_forked_child_computes_on_threads_of_its_own",
    ),
    mutant(
        "a module is waited for that another thread imports", "backends/__init__.py",
        "backend: Backend = import_module(entry.module).BACKEND",
        "backend: Backend = getattr(sys.modules.get(entry.module) or import_module(entry.module), "
        "'BACKEND')",
        "test_concurrency.py::test_a_backend_that_another_thread_is_importing_is_waited_for",
    ),
)  # fmt: skip

_PLANS = (
    mutant(
        "a misfit runs by the plan of its own", "calls/plan.py",
        "result = plan.fitting(arrays).run(arrays, outs, adds, scalars)", "raise",
        "test_plans.py::test_a_plan_runs_arrays_that_lie_less_aligned_by_their_own",
    ),
    mutant(
        "a call on arrays aligned less finds the plan for them", "calls/op.py",
        "            plan = self._misfit(arrays, options)\n", "            raise\n",
        "test_plans.py::test_arrays_that_lie_differently_are_looked_up_before_they_are_planned_anew",
    ),
    mutant(
        "a plan refuses arrays of another shape", "calls/plan.py",
        "                (\"shape\", has.shape, operand.shape),\n                (\"dtype\", "
        "has.dtype, "
        "operand.dtype),\n                (\"device\"",
        "                (\"dtype\", has.dtype, operand.dtype),\n                (\"device\"",
        "test_errors.py::test_a_plan_says_which_fact_of_an_array_differs",
    ),
    mutant(
        "a plan refuses another number of arrays", "calls/plan.py",
        "if len(given) != len(ours.given):", "if False:",
        "test_errors.py::test_a_plan_takes_its_arrays_and_run_time_values_only",
    ),
    mutant(
        "outputs overlap nothing else", "calls/outputs.py",
        "_apart(problem, own, others, _may_be(problem, operand))", "pass",
        "test_errors.py::test_out_may_be_an_input_or_apart_from_it_but_not_overlap_it"
        "[out0-a0-False]",
    ),
    mutant(
        "an output that overlaps itself is refused", "calls/outputs.py",
        "if layouts.overlaps_itself(own):", "if False:",
        "test_plans.py::test_rows_that_interlock_are_apart_where_no_element_is_two"
        "[shape1-strides1-False]",
    ),
    mutant(
        "only ops that are safe in place take an input as output", "calls/outputs.py",
        "    if not spec.inplace:\n", "    if False:\n",
        "test_errors.py::test_an_op_that_is_not_safe_in_place_takes_no_input_as_out[numpy]",
    ),
    mutant(
        "an output takes the place of its own input alone", "calls/outputs.py",
        "return (own,) if own else spec.arrays", "return spec.arrays",
        "test_rope.py::test_a_table_is_not_written_to",
    ),
    mutant(
        "two outputs lie apart", "calls/outputs.py",
        "others.append((\"another output\", own))", "pass",
        "test_errors.py::test_when_the_second_out_is_refused_the_first_is_untouched[False-same]",
    ),
    mutant(
        "read-only outputs are refused", "calls/outputs.py",
        "if library.frozen(x):", "if False:",
        "test_errors.py::test_an_out_that_does_not_fit_is_refused_and_untouched",
    ),
    mutant(
        "only gradients accumulate", "calls/outputs.py",
        "if one and not problem.spec.adds_into(operand.name):", "if False:",
        "test_errors.py::test_only_gradients_accumulate_and_only_into_something",
    ),
    mutant(
        "what is normalised has the dtype of the primal", "calls/body.py",
        "primal=problem.dtype", "primal=problem.outputs[-1].dtype",
        "test_model_norms.py::test_gradients_are_those_of_the_model",
    ),
    mutant(
        "each output has a flag of its own", "calls/body.py",
        "adds = each(accumulate, len(outs))", "adds = (bool(accumulate),) * len(outs)",
        "test_laws.py::test_laws[rms_norm_backward-numpy-numpy-f32]",
    ),
    mutant(
        "only declared sums may be wider", "calls/outputs.py",
        "total = problem.spec.role(operand.name).total and wide != operand.dtype",
        "total = wide != operand.dtype",
        "test_outputs.py::test_only_a_sum_may_be_wider",
    ),
    mutant(
        "there are as many flags as outputs", "calls/outputs.py",
        "if len(every) != len(outputs):", "if False:",
        "test_outputs.py::test_what_accumulate_may_not_be",
    ),
    mutant(
        "the sum of a linear layer's weight is not rounded before it is stored",
        "families/chunks.py",
        "self._rows, self._dweight, self._dbias",
        "self._rows, self._rows.narrowed(self._dweight), self._dbias",
        "test_outputs.py::test_a_float32_buffer_has_digits_that_16_bits_have_not"
        "[linear_cross_entropy_backward-bfloat16-torch]",
    ),
    mutant(
        "outputs that passed before are looked at quickly", "calls/outputs.py",
        "self._passed = _Passed(there, all(there), added, gradient, fit)", "pass",
        "test_outputs.py::test_outputs_like_those_that_passed_are_not_described_again",
    ),
    mutant(
        "what has passed lets like outputs alone pass", "calls/outputs.py",
        "            if not alike(others):\n", "            if False:\n",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass",
    ),
    mutant(
        "what has passed lets no read-only output pass", "calls/outputs.py",
        "if frozen(x) or (i and", "if (i and",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass[numpy]",
    ),
    mutant(
        "what has passed lets no two outputs overlap", "calls/outputs.py",
        "(i and not apart(x, others[:i]))", "False",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass",
    ),
    mutant(
        "what has passed lets no output overlap an input", "calls/outputs.py",
        "if not apart(x, near) and not apart(", "if False and not apart(",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass",
    ),
    mutant(
        "an input passes as output where the op is safe in place alone", "calls/outputs.py",
        "not (y is x and name in may)", "y is not x",
        "test_outputs.py::test_an_input_as_output_passes_where_the_op_is_safe_in_place_alone",
    ),
    mutant(
        "what has passed adds nothing to a new output", "calls/outputs.py",
        "(_there(outs), added) == (passed.there, passed.adds)", "_there(outs) == passed.there",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass",
    ),
    mutant(
        "what has passed lets gradients alone accumulate", "calls/outputs.py",
        "or (accumulate is True and passed and passed.gradient)", "or accumulate is True",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass",
    ),
    mutant(
        "tensors that share memory are not apart", "libraries/torch.py",
        "if y.data_ptr() < end and begin < _end(y)]", "if y.data_ptr() == begin]",
        "test_outputs.py::test_outputs_that_passed_let_nothing_else_pass[torch]",
    ),
    mutant(
        "a view of a tensor reaches as far as its last element", "libraries/torch.py",
        "size = x.itemsize * (sum(steps) + 1)", "pass",
        "test_outputs.py::test_views_of_one_array_are_apart_where_their_elements_are",
    ),
    mutant(
        "torch is told of outputs that have new values", "calls/plan.py",
        "plan.problem.library.written(outs)", "pass",
        "test_plans.py::test_autograd_knows_of_outputs_that_were_written_behind_its_back",
    ),
    mutant(
        "a recorded choice is made or refused", "calls/plan.py",
        "if wanted is not None and (sku := plan.sku) != wanted:", "if wanted is None and False:",
        "test_errors.py::test_a_choice_that_cannot_be_made_again_says_why",
    ),
    mutant(
        "a record of another layout is refused", "calls/plan.py",
        "        (\"layout\", problem.layout, sku.layout),\n", "",
        "test_errors.py::test_a_choice_that_cannot_be_made_again_says_why",
    ),
    mutant(
        "a SKU names the layout of the inputs", "calls/plan.py",
        "layout=problem.layout,", "layout=\"contiguous\",",
        "test_plans.py::test_a_sku_says_how_the_inputs_lie",
    ),
    mutant(
        "a SKU names the index dtype", "calls/plan.py",
        "index_dtype=problem.index_dtype,", "index_dtype=None,",
        "test_laws.py::test_laws[gather-numpy-numpy-f32]",
    ),
    mutant(
        "a SKU says who was forced", "backends/__init__.py",
        "for name in [forced] if forced else every:", "for name in every:",
        "test_laws.py::test_laws[relu-array_api-torch-f32-last]",
    ),
    mutant(
        "a body that scatters by atomics is not deterministic", "calls/body.py",
        "return host or not scatters(problem.spec)", "return True",
        "test_cuda_host.py::test_a_body_on_a_device_scatters_in_no_fixed_order",
    ),
    mutant(
        "a plan that needs too much workspace is passed over", "backends/__init__.py",
        "if limit is None or prepared.workspace_size <= limit:", "if True:",
        "test_plans.py::test_a_plan_that_needs_too_much_workspace_is_passed_over",
    ),
    mutant(
        "the last call is repeated for the same keywords alone", "calls/op.py",
        "and words == guess.written", "",
        "test_plans.py::test_a_call_with_options_repeats_the_last_one_only_where_they_are_the_same",
    ),
    mutant(
        "the last call is repeated for such arrays alone", "calls/op.py",
        "and guess.matches(arrays)", "",
        "test_turns.py::test_more_kinds_than_are_remembered_are_right",
    ),
    mutant(
        "a block of options is not passed by", "calls/op.py",
        "unset = current.get() is DEFAULT", "unset = True",
        "test_plans.py::test_options_hold_for_a_block_and_keywords_win",
    ),
    mutant(
        "1, True and 1.0 are different keywords", "calls/recent.py",
        "(k, t, v) if (t := type(v))", "(k, v) if (t := type(v))",
        "test_errors.py::test_an_equal_value_of_the_wrong_type_fails_after_the_right_one"
        "[axis-1-True]",
    ),
    mutant(
        "an equal run-time value is read again", "calls/check.py",
        "and all(map(is_, given.values(), values)):", "and (*given.values(),) == values:",
        "test_options.py::test_a_run_time_value_that_equals_the_last_one_is_read_again",
    ),
    mutant(
        "a number that may change is read again", "calls/check.py",
        "if _CONSTANT.issuperset(map(type, given.values())):", "if True:",
        "test_options.py::test_a_run_time_value_that_equals_the_last_one_is_read_again",
    ),
    mutant(
        "what watches the arrays of a call is asked once", "calls/op.py",
        "() if alias is None else alias[1:2], block", "(), block",
        "test_life_of_a_call.py::test_a_first_call_asks_each_fact_of_an_array_once[torch]",
    ),
    mutant(
        "calls in turns are remembered", "calls/recent.py",
        "alike = [one, *kinds.get(kind, ())]", "alike = []",
        "test_turns.py::test_calls_in_turns_make_no_key[forms-numpy]",
    ),
    mutant(
        "what is remembered is bounded", "calls/recent.py",
        "len(kinds) >= _MOST_KINDS", "False",
        "test_turns.py::test_what_is_remembered_is_bounded",
    ),
    mutant(
        "arrays aligned less do not take the plan of others", "calls/recent.py",
        "        if not self.narrow:\n", "        if True:\n",
        "test_turns.py::test_arrays_aligned_less_do_not_take_the_plan_of_others",
    ),
    mutant(
        "arrays aligned less are told before others", "calls/recent.py",
        "kinds[kind] = (*fewer, *others)", "kinds[kind] = (*others, *fewer)",
        "test_turns.py::test_chunks_aligned_less_find_their_plan_at_once",
    ),
    mutant(
        "a chunk aligned less runs by a plan of its own", "families/composites.py",
        "plan(narrow=True).run", "plan().run",
        "test_turns.py::test_chunks_aligned_less_find_their_plan_at_once",
    ),
    mutant(
        "what is remembered is forgotten with the cache", "calls/recent.py",
        "if generation != plan_cache.generation:", "if False:",
        "test_turns.py::test_what_was_remembered_is_forgotten_with_the_cache",
    ),
    mutant(
        "a plan pickles with its choices", "calls/records.py",
        "\"choices\": {**asdict(problem.choices), ", "\"choices\": {**asdict(Choices()), ",
        "test_plan_records.py::test_a_plan_keeps_what_was_chosen_for_it",
    ),
    mutant(
        "options end with their block", "declaration/dispatch.py",
        "    try:\n        yield\n    finally:\n        current.reset(token)\n\n\ndef unrecorded",
        "    yield\n\n\ndef unrecorded",
        "test_errors.py::test_the_options_block_is_checked_and_left_behind",
    ),
    mutant(
        "what is not refused can be written down", "declaration/dispatch.py",
        "if not 0 <= limit < 1 << 63:", "if not 0 <= limit:",
        "test_options.py::test_dispatch_options_are_refused_alike[max_workspace_bytes]",
    ),
    mutant(
        "options are those of one thread", "declaration/dispatch.py",
        "current: ContextVar[Choices] = ContextVar(\"baracuda_options\", default=DEFAULT)",
        "class _Global(list):\n    def get(self):\n        return self[-1]\n    def set(self, x):\n"
        "        self.append(x)\n        return x\n    def reset(self, x):\n        "
        "self.pop()\n\n\n"
        "current = _Global([DEFAULT])",
        "test_plans.py::test_options_hold_in_their_own_thread_only",
    ),
)  # fmt: skip

_CHECKS = (
    mutant(
        "zeros of a cotangent have the dtype of its role", "calls/cotangents.py",
        "values.sort(key=lambda n: spec.role(n) != role)", "pass",
        "test_pairing.py::test_zeros_of_a_cotangent_have_the_dtype_of_its_role",
    ),
    mutant(
        "a cotangent of unknown size is asked for", "calls/cotangents.py",
        "if any(x is None for x in zeros.values()):", "if False:",
        "test_pairing.py::test_a_cotangent_of_unknown_size_is_asked_for[rope_qk]",
    ),
    mutant(
        "a plan takes None for a cotangent", "calls/plan.py",
        "arrays = tuple(unwrapped(self._owner.completed(arrays)))",
        "arrays = tuple(unwrapped(arrays))",
        "test_pairing.py::test_a_cotangent_that_is_none_counts_as_zeros[log_prob-numpy]",
    ),
    mutant(
        "a plan in a graph takes None for a cotangent", "calls/plan.py",
        "arrays = self._owner.completed(arrays, torch)", "",
        "test_pairing.py::test_a_graph_takes_none_for_a_cotangent",
    ),
    mutant(
        "a backend that mixes nothing is passed over", "backends/__init__.py",
        "if problem.mixed and not _mixes(backend, problem.spec):", "if False:",
        "test_mixed.py::test_a_backend_that_mixes_nothing_is_passed_over",
    ),
    mutant(
        "the gradient of a parameter has its dtype", "declaration/roles.py",
        "inputs.get(self.typed_as, dtype)", "dtype",
        "test_mixed.py::test_gradients_are_added_into_float32_buffers",
    ),
    mutant(
        "a residual may be wider where parameters are not", "calls/check.py",
        "if kind in wide:", "if wide:\n                kind = next(iter(wide))",
        "test_mixed.py::test_torch_trains_each_input_in_its_own_dtype",
    ),
    mutant(
        "the dtype of a gradient is its primal's, not its residual's", "declaration/spec.py",
        "(own or self.outputs)[0].dtype", "self.outputs[0].dtype",
        "test_laws.py::test_laws[add_rms_norm_backward-torch-torch-bf16-wide_residual-last]",
    ),
    mutant(
        "cotangents come first, in the order of the results", "declaration/verify.py",
        "if not taken or [*spec.arrays[: len(taken)]] != taken:", "if not taken:",
        "test_declarations.py::test_a_mistake_is_refused_and_names_op_and_line",
    ),
    mutant(
        "an index without a policy is refused", "declaration/verify.py",
        "if not role.policy or role.policy not in", "if role.policy and role.policy not in",
        "test_declarations.py::test_a_mistake_is_refused_and_names_op_and_line",
    ),
    mutant(
        "a gradient that scatters is known by its axes", "declaration/indexed.py",
        "return not spec.composite and any(", "return spec.composite and any(",
        "test_declarations.py::test_what_scatters_follows_from_the_axes",
    ),
    mutant(
        "a result that was not used has a cotangent of zeros", "declaration/pairing.py",
        "library.xp.zeros(shape, **where)", "library.xp.ones(shape, **where)",
        "test_pairing.py::test_a_result_that_was_not_used_has_no_cotangent",
    ),
    mutant(
        "a negative index is out of range", "calls/ranges.py",
        "bad = (x < 0) | (x >= problem.extent_of(name))", "bad = x >= problem.extent_of(name)",
        "test_errors.py::test_an_index_out_of_range_is_named_with_its_position[torch--1]",
    ),
    mutant(
        "the extent itself is out of range", "calls/ranges.py",
        "(x >= problem.extent_of(name))", "(x > problem.extent_of(name))",
        "test_errors.py::test_an_index_out_of_range_is_named_with_its_position[torch-8]",
    ),
    mutant(
        "a target to ignore is no error", "calls/ranges.py",
        "return bad if ignored is None else bad &", "return bad if True else bad &",
        "test_extents.py::test_losses_of_no_classes_are_those_of_rows_that_do_not_count",
    ),
    mutant(
        "NumPy's own look sees an index at the extent", "libraries/numpy.py",
        ".max() < n)", ".max() <= n)",
        "test_errors.py::test_an_index_out_of_range_is_named_with_its_position[numpy-8]",
    ),
    mutant(
        "entries that are dropped touch nothing", "backends/numpy/indexed.py",
        "return (index >= 0) & (index < _bins(problem))", "return index < _bins(problem)",
        "test_edges.py::test_gather_and_its_gradient_are_the_loops_that_define_them"
        "[drop-numpy-rows]",
    ),
    mutant(
        "scattered sums are in float64", "backends/numpy/indexed.py",
        "weights = part.astype(np.float64, order=\"C\", copy=False).reshape(-1)",
        "weights = part.astype(np.float16).astype(np.float64, order=\"C\").reshape(-1)",
        "test_laws.py::test_laws[gather_backward-numpy-numpy-f32]",
    ),
    mutant(
        "an output is cleared before sums go into it", "backends/numpy/indexed.py",
        "result[...] = 0 if start is None else start", "pass",
        "test_laws.py::test_laws[gather_backward-numpy-numpy-f32]",
    ),
    mutant(
        "devices do not mix", "calls/check.py",
        "elif TRACED not in (facts[name].device, want):", "elif False:",
        "test_errors.py::test_devices_do_not_mix",
    ),
    mutant(
        "floating dtypes do not mix", "calls/check.py",
        "elif fact.dtype != dtype:", "elif False:",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came"
        "[numpy-two floating dtypes]",
    ),
    mutant(
        "an index is int32 or int64", "calls/check.py",
        "if fact.dtype not in INDICES:", "if False:",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came[numpy-floating index]",
    ),
    mutant(
        "a bool is no integer", "declaration/values.py",
        "if not isinstance(value, Integral) or isinstance(value, bool):",
        "if not isinstance(value, Integral):",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came[numpy-boolean axis]",
    ),
    mutant(
        "infinity is no finite number", "declaration/values.py",
        "Number(text, (0.0, float_info.max), zero", "Number(text, (0.0, math.inf), zero",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came[numpy-infinite base]",
    ),
    mutant(
        "two halves have an even extent", "declaration/shapes.py",
        "if extent % term.factor:", "if False:",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came[numpy-odd extent]",
    ),
    mutant(
        "an index is no larger than its source", "declaration/shapes.py",
        "if n > most and not", "if False and not",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came"
        "[numpy-index larger off the axis]",
    ),
    mutant(
        "an axis is one of the array", "declaration/shapes.py",
        "if not -rank <= axis < rank:", "if False:",
        "test_errors.py::test_bad_input_says_what_was_expected_and_what_came[numpy-no such axis]",
    ),
    mutant(
        "only 1 broadcasts", "declaration/shapes.py",
        "if n != want and not (term.or_one and n == 1):", "if n != want and not term.or_one:",
        "test_errors.py::test_only_an_extent_of_1_broadcasts",
    ),
    mutant(
        "matrices and masked arrays are no arrays", "libraries/numpy.py",
        "if isinstance(x, np.ndarray) and type(x) not in (np.ndarray, np.memmap):",
        "if False:",
        "test_arrays.py::test_every_op_refuses_what_is_no_array_in_every_place[matrix]",
    ),
    mutant(
        "arrays that broadcast an axis overlap themselves", "layouts.py",
        "        if step < reach:\n            break\n",
        "        if step < 0:\n            break\n",
        "test_plans.py::test_rows_that_interlock_are_apart_where_no_element_is_two"
        "[shape1-strides1-False]",
    ),
    mutant(
        "what is too costly to decide counts as an overlap", "layouts.py",
        "    except np.exceptions.TooHardError:\n        return True\n",
        "    except np.exceptions.TooHardError:\n        return False\n",
        "test_plans.py::test_what_is_too_costly_to_decide_counts_as_an_overlap",
    ),
    mutant(
        "float16 computes in float32", "declaration/dtypes.py",
        "DType(\"float16\", \"f16\", \"float\", 2, \"__half\", \"float32\",",
        "DType(\"float16\", \"f16\", \"float\", 2, \"__half\", \"float16\",",
        "test_edges.py::test_narrow_dtypes_compute_in_float32_and_round_once[glu-numpy-float16]",
    ),
    mutant(
        "float64 computes in float64", "declaration/dtypes.py",
        "DType(\"float64\", \"f64\", \"float\", 8, \"double\", \"float64\",",
        "DType(\"float64\", \"f64\", \"float\", 8, \"double\", \"float32\",",
        "test_edges.py::test_the_weight_keeps_the_precision_of_float64[numpy]",
    ),
)  # fmt: skip

_VALUES = (
    mutant(
        "a run-time value that is watched is not read", "calls/check.py",
        "if library.readable(x) and not watched:", "if library.readable(x):",
        "test_values.py::test_a_value_has_its_true_gradient",
    ),
    mutant(
        "the gradient along a run-time value is that of the body", "calls/check.py",
        "\"traced\" if given.mode == \"autograd\" else given.mode", "given.mode",
        "test_values.py::test_a_value_has_its_true_gradient",
    ),
    mutant(
        "a run-time value lies where the arrays do", "calls/check.py",
        "if fixed and fact.device != there.device:", "if False:",
        "test_values.py::test_what_cannot_stand_for_a_number_is_refused",
    ),
    mutant(
        "a body looks at no run-time value on a device", "calls/body.py",
        "with unread():", "if True:",
        "test_values.py::test_a_body_computes_with_what_nobody_may_read",
    ),
    mutant(
        "run-time values on a device have plans of their own", "declaration/spec.py",
        "            self.reads,\n", "            (),\n",
        "test_values.py::test_plans_of_numbers_and_of_arrays_take_each_others_values",
    ),
    mutant(
        "a gradient is that at the run-time value of the call", "frameworks/torch/autograd.py",
        "return run_on_copies if problem.reads else run_watched", "return run_watched",
        "test_values.py::test_the_gradient_is_that_at_the_value_of_the_call",
    ),
    mutant(
        "a graph of torch takes no tensor for a run-time value", "calls/routes.py",
        "if isinstance(options.get(name), torch.Tensor):", "if False:",
        "test_values.py::test_a_graph_of_torch_names_a_value_that_it_does_not_take",
    ),
    mutant(
        "what is normalised is no batch", "declaration/spec.py",
        "return term.group if self.batches is None else term.name in self.batches",
        "return term.group or term.name in (self.batches or ())",
        "test_cuts.py::test_what_says_that_its_group_is_not_to_be_cut_keeps_it",
    ),
)  # fmt: skip

_BODIES = (
    mutant(
        "sizes are raised at once where their powers are numbers", "families/numerics.py",
        "end = 2.0 ** ((100 if size.dtype == xp.float32 else 800) / p)",
        "end = 2.0 ** (100 if size.dtype == xp.float32 else 800)",
        "test_edges.py::test_pooling_is_accurate_from_1e_minus_30_to_1e30[3-numpy-float32]",
    ),
    mutant(
        "a sum is stored as its own result is", "calls/body.py",
        "[x.dtype for x in problem.outputs],\n    )",
        "[problem.dtype for x in problem.outputs],\n    )",
        "test_mixed.py::test_torch_trains_each_input_in_its_own_dtype",
    ),
    mutant(
        "slopes of a mean keep the range of float16", "ops/linear_cross_entropy.py",
        'name_of(rows.weight.dtype) != "float16"', "True",
        "test_saturation.py::test_slopes_of_a_mean_keep_their_digits_in_half_precision",
    ),
    mutant(
        "chunks of a composite are planned once", "calls/recent.py",
        "self.remember(found, generation, alias, arrays)", "pass",
        "test_losses.py::test_a_repeated_chunk_makes_no_plan",
    ),
    mutant(
        "halves of a packed array are widened", "calls/body.py",
        "floats = [name not in problem.spec.discrete for name in problem.spec.arrays]",
        "floats = [x is not None and x.name not in problem.spec.discrete for x in problem.inputs]",
        "test_plans.py::test_halves_of_a_packed_array_are_as_wide_as_whole_arrays[float16-glu]",
    ),
    mutant(
        "blocks cut what does not depend on other elements alone", "calls/cuts.py",
        "if label.term.name in free and label.name not in fixed:",
        "if label.name not in fixed:",
        "test_rows.py::test_rows_longer_than_a_block_stay_whole",
    ),
    mutant(
        "heads of which there are fewer are not cut with the others", "calls/cuts.py",
        "free = self.free - {name for term in bound for name in (term.name, term.bound)}",
        "free = self.free",
        "test_blocks.py::test_heads_of_which_there_are_fewer_are_not_cut_with_the_others",
    ),
    mutant(
        "sums over blocks of torch are added", "backends/torch/blocks.py",
        "put(block, total).add_(value)", "put(block, total).copy_(value)",
        "test_blocks.py::test_blocks_make_the_whole[rms_norm_backward-torch]",
    ),
    mutant(
        "a diagonal knows its place", "calls/cuts.py",
        "and label.name not in fixed:", ":",
        "test_rows.py::test_a_diagonal_knows_its_place_in_blocks[shape1]",
    ),
    mutant(
        "blocks add to what is there", "backends/numpy/blocks.py",
        "view.astype(compute) + value if add else value", "value",
        "test_plans.py::test_blocks_add_into_what_is_there",
    ),
    mutant(
        "NumPy's warnings do not leak from threads", "backends/numpy/blocks.py",
        "        with np.errstate(all=\"ignore\"):\n            while True:",
        "        if True:\n            while True:",
        "test_plans.py::test_blocks_neither_warn_nor_raise",
    ),
    mutant(
        "a record is of the numbers that it was made with", "backends/numpy/programs.py",
        "key = tuple(map(repr, scalars.values()))", "key = ()",
        "test_programs.py::test_other_numbers_have_a_record_of_their_own",
    ),
    mutant(
        "a record writes over what nobody needs alone", "backends/numpy/programs.py",
        "if last[number] == i]", "]",
        "test_programs.py::test_a_record_gives_the_bits_of_the_body[gelu-float32]",
    ),
    mutant(
        "blocks are computed while the interpreter shuts down", "backends/numpy/blocks.py",
        "with suppress(RuntimeError):", "if True:",
        "test_plans.py::test_arrays_in_blocks_are_computed_while_the_interpreter_shuts_down",
    ),
    mutant(
        "the gradient of swiglu has the value's sign", "ops/gated.py",
        "dy * a * (on * (1 + b * off))", "dy * a * (on * (1 - b * off))",
        "test_laws.py::test_laws[swiglu_backward-numpy-numpy-f32]",
    ),
    mutant(
        "the gate is the second half", "ops/gated.py",
        "return (second, first) if gate_first else (first, second)",
        "return (first, second) if gate_first else (second, first)",
        "test_docs.py::test_the_examples_of_the_docstrings_run[baracuda.ops.gated]",
    ),
    mutant(
        "rope turns back in its gradient", "families/rotation.py",
        "        sin = -sin\n", "        pass\n",
        "test_laws.py::test_laws[rope_backward-numpy-numpy-f32]",
    ),
    mutant(
        "angles do not change along heads of keys", "families/rotation.py",
        "moving |= any(extent != 1 for extent in angles)", "pass",
        "test_rope.py::test_keys_are_like_queries_but_for_their_heads",
    ),
    mutant(
        "pairs are neighbours where they are interleaved", "libraries/__init__.py",
        "pair = (first * cos - second * sin, first * sin + second * cos)",
        "pair = (first * cos + second * sin, first * sin - second * cos)",
        "test_laws.py::test_laws[rope-array_api-array_api_strict-f64-last]",
    ),
    mutant(
        "an array that is an option is known by its values", "calls/recent.py",
        "return (np.ndarray, value.dtype, value.shape), value.tobytes()",
        "return np.ndarray, id(value)",
        "test_frequencies.py::test_frequencies_are_read_when_an_op_is_called",
    ),
    mutant(
        "angles keep their lowest limb", "families/rotation.py",
        "phase = (phase + (columns[..., 2, :] >> 15)) & 0x3FFFFFFF", "phase = phase & 0x3FFFFFFF",
        "test_edges.py::test_rope_is_exact_to_4_eps_at_every_position[10000.0-numpy-float32]",
    ),
    mutant(
        "a row of which nothing counts is 0", "libraries/numpy.py",
        "x /= np.where(total == 0, 1, total)", "x /= total",
        "test_rows.py::test_rows_of_which_nothing_counts[numpy]",
    ),
    mutant(
        "the mean of a loss is that of its elements", "families/reductions.py",
        "return math.prod(shape) if reduction == \"mean\" else 1",
        "return shape[0] if reduction == \"mean\" and shape else 1",
        "test_losses.py::test_pairs_are_torchs[mse_loss-mean]",
    ),
    mutant(
        "targets beyond the classes do not count", "families/reductions.py",
        "& (target >= 0) & (target < v)", "& (target >= 0)",
        "test_losses.py::test_a_target_out_of_range_is_an_error_on_the_host",
    ),
    mutant(
        "of several entries for a place the last counts", "families/indexing.py",
        "return valid & (at == _numbers(index, axis)), last", "return valid, last",
        "test_laws.py::test_laws[scatter_backward-array_api-jax-f64-last]",
    ),
    mutant(
        "NumPy writes entries in their order", "backends/numpy/indexed.py",
        "result.reshape(-1)[at] = values", "result.reshape(-1)[at[::-1]] = values[::-1]",
        "test_docs.py::test_the_examples_of_the_docstrings_run[baracuda.ops.scatter]",
    ),
    mutant(
        "gather moves nothing from out of range", "families/indexing.py",
        "return xp.where(valid, out, xp.zeros_like(out))", "return out",
        "test_edges.py::test_traced_code_drops_what_it_cannot_raise",
    ),
    mutant(
        "elementwise results keep a dense layout", "calls/check.py",
        "strides = layouts.canonical(extents, layouts.in_order(extents, order))", "pass",
        "test_edges.py::test_elementwise_ops_and_ropes_keep_a_dense_layout[4-order1-None-numpy]",
    ),
    mutant(
        "no result is a view of an input", "libraries/numpy.py",
        "return np.asarray(x, order=\"C\")", "return x",
        "test_edges.py::test_other_ops_and_undense_inputs_give_c_order[order1-numpy]",
    ),
    mutant(
        "what takes no part ties with nothing", "ops/scatter_reduce.py",
        "if include_self:\n            ties = ties", "if True:\n            ties = ties",
        "test_scatter_reduce.py::test_who_ties_shares_evenly[1-numpy]",
    ),
)  # fmt: skip

_FRAMEWORKS = (
    mutant(
        "a shared gradient has the dtype of each input in JAX", "frameworks/jax.py",
        "found[dual(names[i])].astype(dtypes[i])", "found[dual(names[i])]",
        "test_mixed.py::test_jax_differentiates_them[add_rms_norm-residual]",
    ),
    mutant(
        "a shared gradient has the dtype of each input on a tape", "declaration/pairing.py",
        "else cast(g, d)", "else g",
        "test_mixed.py::test_an_engine_gets_gradients_in_the_dtypes_of_the_inputs",
    ),
    mutant(
        "a cotangent of zeros has the dtype of its result", "declaration/pairing.py",
        '{"dtype": kept.dtypes[name], "device": device}',
        '{"dtype": given[0].dtype, "device": device}',
        "test_mixed.py::test_an_engine_gets_gradients_in_the_dtypes_of_the_inputs",
    ),
    mutant(
        "watched tensors get the explicit gradient", "calls/plan.py",
        "if problem.mode != \"autograd\":", "if True:",
        "test_torch.py::test_only_the_fused_ops_run",
    ),
    mutant(
        "activations keep their explicit gradient on a CPU", "calls/plan.py",
        "_EXACT = frozenset({\"activation\", \"loss\", \"softmax\"})", "_EXACT = frozenset()",
        "test_saturation.py::test_a_body_of_a_cpu_has_its_explicit_gradient[tanhshrink]",
    ),
    mutant(
        "a gradient is differentiated again", "frameworks/torch/autograd.py",
        "        if torch.is_grad_enabled():\n            found = self._again",
        "        if False:\n            found = self._again",
        "test_torch.py::test_first_and_second_derivatives_by_finite_differences"
        "[logsumexp-along a direction]",
    ),
    mutant(
        "dispatch options hold for the gradient", "frameworks/torch/autograd.py",
        "return {k: getattr(problem.choices, k) for k in NAMES} | {\"sku\": None}",
        "return {\"sku\": None}",
        "test_torch.py::test_a_choice_holds_for_the_gradient_too",
    ),
    mutant(
        "results under autograd are written to in place", "frameworks/torch/autograd.py",
        "return result.data if result._is_view() else result", "return result",
        "test_torch.py::test_results_are_the_callers_to_write_to[linear_cross_entropy]",
    ),
    mutant(
        "gradients that were made forward are handed out once", "frameworks/torch/autograd.py",
        "made, ctx.made = ctx.call, ctx.made, None", "made = ctx.call, ctx.made",
        "test_ahead.py::test_gradients_are_scaled_backward_and_may_be_asked_for_twice[-2.5-None-plain]",
    ),
    mutant(
        "gradients are made forward where all are asked for", "frameworks/torch/autograd.py",
        "return all(watched) and _hooks(True) is None", "return _hooks(True) is None",
        "test_ahead.py::test_nothing_is_made_that_may_not_be_asked_for",
    ),
    mutant(
        "a program leaves gradients alone where the cotangent is 1", "frameworks/torch/ahead.py",
        "factor.item() != 1", "True",
        "test_ahead.py::test_a_compiled_program_scales_in_place_what_it_returns[torch.float32]",
    ),
    mutant(
        "what is made of a gradient has the factor in it", "frameworks/torch/ahead.py",
        "if returned and isinstance(", "if isinstance(",
        "test_ahead.py::test_a_compiled_program_scales_in_place_what_it_returns[torch.float32]",
    ),
    mutant(
        "a checkpoint makes no gradients forward", "frameworks/torch/autograd.py",
        "return all(watched) and _hooks(True) is None", "return all(watched)",
        "test_ahead.py::test_a_checkpoint_takes_the_products_that_the_docs_say[taken away-1-5]",
    ),
    mutant(
        "float16 makes no gradients forward", "calls/adjoint.py",
        " or problem.dtype == \"float16\":", ":",
        "test_ahead.py::test_nothing_is_made_that_may_not_be_asked_for",
    ),
    mutant(
        "losses of 16 bits are float32", "declaration/roles.py",
        "return named(own).accumulate if self.accumulated else own", "return own",
        "test_losses.py::test_losses_of_16_bits_are_float32[mean]",
    ),
    mutant(
        "targets that have no cotangent are differentiated by the body",
        "frameworks/torch/autograd.py",
        "if outs is not None or (link.open and any(arrays[i].requires_grad for i in link.open)):",
        "if outs is not None:",
        "test_losses.py::test_targets_are_differentiated_and_never_silently_constant[mse_loss]",
    ),
    mutant(
        "operators have a gradient", "frameworks/torch/operators.py",
        "if set(op.spec.dtypes) & set(FLOATS):", "if False:",
        "test_torch_graphs.py::test_a_compiled_call_is_one_operator_and_so_is_its_gradient"
        "[add_rms_norm-False]",
    ),
    mutant(
        "fakes have the layout of results", "frameworks/torch/operators.py",
        "like.new_empty_strided(x.shape, x.strides, dtype=dtype)",
        "like.new_empty(x.shape, dtype=dtype)",
        "test_torch_graphs.py::test_a_fake_lies_as_a_result_does",
    ),
    mutant(
        "fakes have the dtype of results", "frameworks/torch/operators.py",
        "        dtype = problem.library.dtype(x.dtype)\n", "        dtype = like.dtype\n",
        "test_torch_graphs.py::test_a_fake_lies_as_a_result_does",
    ),
    mutant(
        "seeds of 64 bits have no sign", "declaration/values.py",
        "return number % (2 * _TOP) if self.code == \"Q\" else number", "return number",
        "test_random.py::test_a_mask_follows_from_the_seed_and_the_places_alone",
    ),
    mutant(
        "a table is in no pool of a library", "backends/cuda/lists.py",
        "count, old = self._words, Table(Memory(8 * self._words), None)",
        "count, old = self._words, Table(Memory(8 * self._words), None)\n"
        "            self._arrays.workspace((self._words,), \"int64\", self._facts.ordinal)",
        "test_lists.py::test_a_table_is_in_no_pool_of_a_library",
    ),
    mutant(
        "labels may begin anywhere", "backends/cuda/schedules/__init__.py",
        "kernel.schedule not in ENTRIES", "True",
        "test_cuda_host.py::test_labels_that_were_shifted_by_one_cost_no_vectors[cross_entropy]",
    ),
    mutant(
        "the short way asks no alignment of labels", "backends/cuda/fast_call.py",
        "either([x for i, x in enumerate(given) if i not in anywhere])", "either(given)",
        "test_cuda_host.py::test_labels_that_were_shifted_by_one_cost_no_vectors[cross_entropy]",
    ),
    mutant(
        "only what is sent again may change in a table", "backends/cuda/lists.py",
        "not fixed.isdisjoint(changed)", "False",
        "test_lists.py::test_a_table_is_made_again_where_an_address_has_changed",
    ),
    mutant(
        "gradients that moved may not lie in what is written", "backends/cuda/lists.py",
        "if touches(column,", "if False and touches(column,",
        "test_lists.py::test_only_rows_are_sent_again_and_overlaps_still_found",
    ),
    mutant(
        "a master copy that was left behind is not taken", "optim/kept.py",
        "return torch.equal(local(master).to(p.dtype), local(p.detach()))", "return True",
        "test_torch_optim.py::test_float32_states_are_not_rounded_by_checkpoints",
    ),
    mutant(
        "a master copy that is loaded waits for its weights", "optim/steps.py",
        "loaded(self).add(p)",
        "self.state[p].pop(MASTER) if not torch.equal(row[MASTER].to(p.dtype), p) else None",
        "test_torch_optim.py::test_master_copies_come_back_whatever_is_loaded_first[False]",
    ),
    mutant(
        "what one set writes is no array of another", "calls/lists.py",
        "        if self._alone:\n            # Backends",
        "        if False:\n            # Backends",
        "test_lists.py::test_what_one_set_writes_is_no_array_of_another",
    ),
    mutant(
        "float16 has no large variances", "nn/norms.py",
        " and mean.dtype is not torch.float16", "",
        "test_torch_modules.py::test_running_variances_of_float16_are_torchs",
    ),
    mutant(
        "arrays that nobody has put on a device go to the others", "calls/check.py",
        "if free is not None and free(given[name]):", "if False:",
        "test_jax.py::test_over_four_devices[add_rms_norm]",
    ),
    mutant(
        "a negative seed that is traced has all its bits", "frameworks/jax.py",
        "jnp.where(x < 0, -1, 0)", "jnp.zeros_like(x)",
        "test_jax_values.py::test_a_traced_seed_is_the_seed[int32]",
    ),
    mutant(
        "numbered elements are not divided", "calls/partitioning.py",
        "return frozenset() if spec.numbers(form) else _apart(spec, form)",
        "return _apart(spec, form)",
        "test_random.py::test_an_array_that_would_be_cut_into_blocks_has_one_mask",
    ),
    mutant(
        "what a result says is not linear", "calls/adjoint.py",
        " and not results & {*second.arrays}", "",
        "test_new_ops.py::test_positions_are_those_of_torch_and_gradients_go_there",
    ),
    mutant(
        "fakes have the shape of results", "frameworks/torch/operators.py",
        "like.new_empty(x.shape, dtype=dtype)", "like.new_empty((*x.shape, 1), dtype=dtype)",
        "test_torch_graphs.py::test_a_fake_lies_as_a_result_does",
    ),
    mutant(
        "a plan of plain tensors is not that of watched ones", "libraries/torch.py",
        "and (not matters or torch.is_grad_enabled() is watched)", "",
        "test_plans.py::test_a_plan_of_watched_tensors_is_not_one_for_a_block_without_gradients",
    ),
    mutant(
        "torch's switch for determinism is seen", "libraries/torch.py",
        "return (mode, deterministic) if mode or deterministic else None",
        "return (mode, False) if mode else None",
        "test_torch.py::test_the_global_switch_is_part_of_a_plan",
    ),
    mutant(
        "the last call is not repeated where the switch is on", "libraries/torch.py",
        "and not _deterministic()", "",
        "test_torch.py::test_the_global_switch_is_part_of_a_plan",
    ),
    mutant(
        "autocast changes nothing", "libraries/torch.py",
        "return torch.autocast(kind, enabled=False) if narrows else _AS_IT_IS",
        "return _AS_IT_IS",
        "test_torch_training.py::test_in_an_autocast_region_an_op_computes_as_outside"
        "[linear_cross_entropy-bfloat16]",
    ),
    mutant(
        "sparse tensors are no dense ones", "libraries/torch.py",
        "if x.is_nested or x.layout != torch.strided or x.is_quantized:", "if x.is_nested:",
        "test_errors.py::test_sparse_and_nested_tensors_are_no_dense_ones",
    ),
    mutant(
        "an axis that a cotangent lacks is not cut", "calls/partitioning.py",
        "*[p.reached for p in form.outputs], *_cotangents(spec, form))\n    return shared",
        "*[p.reached for p in form.outputs])\n    return shared",
        "test_pages.py::test_no_page_is_stale",
    ),
    mutant(
        "options of a share shrink with it", "calls/partitioning.py",
        "lambda name, extent: -(-extent // _parts(places.get(name), mesh))",
        "lambda name, extent: extent",
        "test_jax_kernels.py::test_a_share_has_smaller_options_and_each_mesh_axis_once",
    ),
    mutant(
        "a batch moves the marked axes", "calls/partitioning.py",
        "options[pattern.marker] += 1", "pass",
        "test_jax_kernels.py::test_batches_by_the_shape_string",
    ),
    mutant(
        "each axis of a mesh is used once", "calls/partitioning.py",
        "if name and name not in out and over and not over & taken:",
        "if name and name not in out and over:",
        "test_jax_kernels.py::test_a_share_has_smaller_options_and_each_mesh_axis_once",
    ),
    mutant(
        "sums over shards are made or left to others", "frameworks/torch/sharding.py",
        "other = Partial() if sums else WHOLE", "other = WHOLE",
        "test_torch_devices.py::test_a_result_that_lacks_an_axis_that_is_cut_is_a_partial_sum",
    ),
    mutant(
        "JAX gets the explicit gradient", "frameworks/jax.py",
        "        function.defjvp(rule)\n", "        function.defjvp(by_body)\n",
        "test_jax.py::test_the_gradient_calls_the_explicit_backward"
        "[add_rms_norm-add_rms_norm_backward]",
    ),
    mutant(
        "JAX finds constant indices out of range", "frameworks/jax.py",
        "ranges.check(plan.problem, arrays)", "pass",
        "test_jax.py::test_a_constant_index_out_of_range_is_found_while_tracing",
    ),
    mutant(
        "a transposed call is batched along all tangents", "frameworks/jax.py",
        "front[i] = jnp.broadcast_to(args[i], (size, *args[i].shape))", "pass",
        "test_jax.py::test_gradients_batch_and_nest[add_rms_norm]",
    ),
    mutant(
        "what is linear has its devices when it is lowered", "frameworks/jax.py",
        "set()).add(linear_p)", "set())",
        "test_jax_kernels.py::test_a_program_of_nothing_but_what_is_linear_is_lowered[rope]",
    ),
    mutant(
        "the largest logit is a constant to derivatives", "families/reductions.py",
        "return most(library.constant(x), ", "return most(x, ",
        "test_jax.py::test_no_derivative_asks_which_element_is_the_largest",
    ),
    mutant(
        "the largest of a softmax is a constant to derivatives", "libraries/__init__.py",
        "self.xp.max(self.constant(x), ", "self.xp.max(x, ",
        "test_jax.py::test_no_derivative_asks_which_element_is_the_largest[softmax-others0]",
    ),
    mutant(
        "what JAX's gradients need has a name", "frameworks/jax.py",
        'checkpoint_name(x, f"{spec.name}.{name}")', "x",
        "test_jax.py::test_policies_of_checkpoint_save_by_name",
    ),
    mutant(
        "a skipped step of optax does not count", "integrations/optax.py",
        "count if skipped is None else jnp.where(skipped, part.count, count)", "count",
        "test_jax_optax.py::test_gradients_are_clipped_and_steps_skipped_within_the_pass",
    ),
    mutant(
        "parameters of a skipped step do not decay", "integrations/optax.py",
        "lost = jnp.where(skipped, 0, lost)", "pass",
        "test_jax_optax.py::test_gradients_are_clipped_and_steps_skipped_within_the_pass",
    ),
    mutant(
        "masks of optax keep parameters from decay", "integrations/optax.py",
        "if decays and _some(lost):", "if _some(lost):",
        "test_jax_optax.py::test_a_hundred_steps_are_those_of_optax[adamw-mask]",
    ),
)  # fmt: skip

_MODULES = (
    mutant(
        "running variances are unbiased", "nn/norms.py",
        "batch_var * (number / (number - 1))", "batch_var",
        "test_torch_modules.py::test_running_statistics_are_torchs",
    ),
    mutant(
        "batches are counted", "nn/norms.py",
        "self.num_batches_tracked.add_(1)", "pass",
        "test_torch_modules.py::test_running_statistics_are_torchs",
    ),
    mutant(
        "statistics of short inputs keep their digits", "nn/norms.py",
        "mean.dtype is input.dtype and mean", "mean",
        "test_torch_modules.py::test_statistics_of_short_inputs_keep_their_digits",
    ),
    mutant(
        "images with channels last keep their format", "nn/norms.py",
        "    layout = _FORMATS.get(x.ndim)\n", "    layout = None\n",
        "test_torch_modules.py::test_images_with_channels_last_keep_their_format",
    ),
    mutant(
        "the default eps of an RMS norm is float32's beside 16 bits", "nn/norms.py",
        "x.dtype if x.dtype is torch.float64 else torch.float32", "x.dtype",
        "test_torch_modules.py::test_the_default_eps_is_that_of_the_arithmetic",
    ),
    mutant(
        "classes are along the second axis", "nn/losses.py",
        "    axis = min(input.ndim - 1, 1)\n", "    axis = input.ndim - 1\n",
        "test_torch_modules.py::test_torchs_own_tests_of_the_module[CrossEntropyLoss]",
    ),
    mutant(
        "weights of elements are not lost", "nn/losses.py",
        "None if w is None else w.expand(input.shape) for w", "None for w",
        "test_torch_modules.py::test_torchs_own_tests_of_the_module[BCELoss]",
    ),
    mutant(
        "weights of classes are not lost beside smoothing", "nn/losses.py",
        "return cross_entropy(input, target, self.weight, axis",
        "return cross_entropy(input, target, axis",
        "test_torch_modules.py::test_weights_of_classes_beside_smoothing",
    ),
    mutant(
        "a module in place writes over its input", "nn/activations.py",
        "getattr(self, \"inplace\", False)", "False",
        "test_torch_modules.py::test_in_place_is_torchs_own[ReLU]",
    ),
    mutant(
        "nested tensors run torch's own forward", "nn/namesakes.py",
        " and not x.is_nested", "",
        "test_torch_modules.py::test_what_an_op_does_not_take_runs_torchs_own",
    ),
    mutant(
        "mixed dtypes run torch's own forward", "nn/namesakes.py",
        "y.dtype is own and y.device", "y.device",
        "test_torch_modules.py::test_what_an_op_does_not_take_runs_torchs_own",
    ),
    mutant(
        "DTensors run the op", "nn/namesakes.py",
        "(type(x) in _PLAIN or knows_operators(x))", "type(x) in _PLAIN",
        "test_torch_replacement.py::test_sharded_models_and_parameters",
    ),
    mutant(
        "modules are leaves of a symbolic trace", "nn/namesakes.py",
        "if isinstance(x, torch.fx.Proxy):", "if False:",
        "test_torch_modules.py::test_modules_are_leaves_of_a_symbolic_trace",
    ),
    mutant(
        "a forward of an instance's own stays", "nn/replacement.py",
        "if \"forward\" in vars(module):", "if False:",
        "test_torch_replacement.py::test_what_is_left_has_a_reason",
    ),
    mutant(
        "subclasses are left", "nn/replacement.py",
        "        kind = type(module)\n        if kind in wanted:\n",
        "        kind = next((k for k in type(module).__mro__ if k in wanted), type(module))\n"
        "        if kind in wanted:\n",
        "test_torch_replacement.py::test_what_is_left_has_a_reason",
    ),
    mutant(
        "a pool whose results differ is left", "nn/pooling.py",
        "if p > 0 and p % 2 == 0 and not self.ceil_mode:", "if True:",
        "test_torch_replacement.py::test_what_is_left_has_a_reason",
    ),
    mutant(
        "a gate that is first stays first", "nn/replacement.py",
        "elif getattr(module, \"gate_first\", False):", "elif False:",
        "test_torch_replacement.py::test_what_is_left_has_a_reason",
    ),
)  # fmt: skip

_TOOLS = (
    mutant(
        "a stale page is found", "tools/pages.py",
        "def stale(docs: Path = DOCS) -> Iterator[str]:\n",
        "def stale(docs: Path = DOCS) -> Iterator[str]:\n    return\n",
        "test_pages.py::test_stale_missing_and_surplus_pages_are_found",
    ),
    mutant(
        "what a backend claims is what it takes", "backends/torch/__init__.py",
        "return [d for d in spec.dtypes if not (d == \"bfloat16\" and library == \"numpy\")]",
        "return spec.dtypes",
        "test_pages.py::test_no_page_is_stale",
    ),
    mutant(
        "errors are also the built-in that fits", "errors.py",
        "class IndexOutOfRangeError(BaracudaError, IndexError):",
        "class IndexOutOfRangeError(BaracudaError):",
        "test_errors.py::test_an_index_out_of_range_is_named_with_its_position[numpy-8]",
    ),
    mutant(
        "backends of others are never in the way", "backends/__init__.py",
        "            entry = Entry(\"\", None, fault=f\"{type(error).__name__}: {error}\")\n",
        "            raise\n",
        "test_outside_backend.py::test_broken_ones_say_why_and_break_nothing",
    ),
    mutant(
        "backends of others come behind ours", "backends/__init__.py",
        "at = [key for key, _ in items].index(before) if before else len(items)",
        "at = [key for key, _ in items].index(before) if before else 0",
        "test_outside_backend.py::test_it_is_asked_behind_the_others_and_read_by_the_first_plan",
    ),
    mutant(
        "torch takes no NumPy array that it would misread", "backends/torch/__init__.py",
        "        (not x.flags.writeable, \"read-only\"),\n", "",
        "test_errors.py::test_torch_refuses_numpy_arrays_that_it_would_copy_or_misread[read-only]",
    ),
    mutant(
        "a law is broken by what a backend raises", "testing/laws.py",
        "def skus_are_honest(subject: Subject) -> None:\n",
        "def skus_are_honest(subject: Subject) -> None:\n    return\n",
        "test_parity.py::test_json_alone_is_on_standard_output_and_processes_agree",
    ),
)  # fmt: skip

_NAMESAKES = (
    mutant(
        "no gradient is the cotangent itself", "backends/torch/indexed.py",
        "dout.clone() if include_self else dout", "dout",
        "test_scatter_reduce.py::test_no_gradient_is_the_cotangent[sum]",
    ),
    mutant(
        "widened elements are those that are summed",
        "backends/cuda/schedules/indexed/combine.py",
        "_into(step, src.slot, values.slot)", "_into(step, src.slot, src.slot)",
        "test_emulated_scatter_reduce.py::test_an_index_may_lie_anywhere_beside_widened_elements",
    ),
    mutant(
        "an index beside widened elements lies where it did",
        "backends/cuda/schedules/indexed/combine.py",
        "problem=wide, add=True, wide=()", "problem=wide, add=True, wide=(), alignment=16",
        "test_emulated_scatter_reduce.py::test_an_index_may_lie_anywhere_beside_widened_elements",
    ),
    mutant(
        "torch's two meanings of a NaN are told", "backends/torch/adapters.py",
        "        if nan is not None and has_nan(arrays[nan]):\n            return None\n",
        "",
        "test_torch_namesakes.py::test_nan_and_infinities_are_those_of_the_body_wherever_they_stand[relu6_backward-7]",
    ),
    mutant(
        "gelu of torch tensors does not cancel below 0", "backends/torch/units.py",
        "torch.mul(x, -_ROOT).erfc_()",
        "torch.mul(x, _ROOT).erf_().add_(1)",
        "test_torch_namesakes.py::test_gelu_keeps_its_digits_in_the_tail[torch.float32-none]",
    ),
    mutant(
        "rows far from 0 are centred before torch norms them", "backends/torch/norms.py",
        ".item() <= 1)", ".item() <= 1e9)",
        "test_torch_namesakes.py::test_rows_far_from_0_keep_their_digits[layer_norm-10000.0]",
    ),
    mutant(
        "torch's gelu is not asked for infinities", "backends/torch/units.py",
        "            if not most < 1e30:\n                return None\n",
        "",
        "test_torch_namesakes.py::test_slopes_of_gelu_at_huge_numbers_are_those_of_the_body[3e+38-7]",
    ),
    mutant(
        "a bend of no width is as narrow as a number", "backends/torch/adapters.py",
        "values = [max(value, least) for value in values]",
        "values = [*values]",
        "test_torch_namesakes.py::test_the_slope_of_a_bend_of_no_width_is_0_in_it[torch.float32]",
    ),
    mutant(
        "a row of NaN of torch's softmax is looked at", "backends/torch/rows.py",
        "return None if has_nan(y.select(axis, 0)) else y",
        "return y",
        "test_torch_namesakes.py::test_rows_of_which_nothing_counts_are_those_of_the_definition",
    ),
    mutant(
        "what a logarithm left out has no cotangent", "backends/torch/rows.py",
        "if \"log\" in name and not y.min().item() > -torch.inf:",
        "if False:",
        "test_torch_namesakes.py::test_rows_of_which_nothing_counts_are_those_of_the_definition",
    ),
    mutant(
        "torch adds up parameters of few rows", "backends/torch/norms.py",
        "weight is not None and mean.numel() <= _FEW", "weight is not None",
        "test_torch_namesakes.py::test_gradients_of_parameters_are_sums_of_many_numbers[layer_norm]",
    ),
    mutant(
        "and of small planes", "backends/torch/norms.py",
        "x.shape[0] <= _FEW and x[0, 0].numel() <= _PLANE", "x.shape[0] <= _FEW",
        "test_torch_namesakes.py::test_gradients_of_parameters_are_sums_of_many_numbers"
        "[instance_norm]",
    ),
    mutant(
        "torch's gradient of a batch norm knows no cotangents of statistics",
        "backends/torch/norms.py",
        "and not (dmean.any() or dvar.any())", "",
        "test_laws.py::test_laws[batch_norm_backward-torch-torch-bf16]",
    ),
    mutant(
        "torch's norms are of rows near 0", "backends/torch/norms.py",
        "return x - x.mean(-1, keepdim=True)",
        "return x",
        "test_torch_namesakes.py::test_rows_far_from_0_keep_their_digits[layer_norm-1000000.0]",
    ),
    mutant(
        "torch's losses drop classes out of range", "backends/torch/rows.py",
        "    if mode == \"drop\":\n",
        "    if False:\n",
        "test_torch_namesakes.py::test_classes_out_of_range_are_dropped[False-0.0-mean-torch.int32--1]",
    ),
    mutant(
        "torch's functions widen what they would round twice", "backends/torch/namesakes.py",
        "    widened = problem.dtype not in found.dtypes",
        "    widened = False",
        "test_torch_namesakes.py::test_every_number_of_16_bits_is_rounded_once[sigmoid_backward-torch.float16]",
    ),
    mutant(
        "what is added to is not rounded before", "backends/torch/namesakes.py",
        "narrow = accumulate or any(",
        "narrow = any(",
        "test_torch_namesakes.py::test_what_is_added_in_16_bits_is_rounded_once[torch.bfloat16]",
    ),
    mutant(
        "torch's loops between two layouts are others", "backends/torch/namesakes.py",
        "        if alike and not accumulate and _lies(outs[0], strides):",
        "        if found.writes and not (accumulate or widened):",
        "test_torch_namesakes.py::test_into_another_layout_go_the_same_bits",
    ),
    mutant(
        "a threshold of a softplus is one that has an exponential", "backends/torch/namesakes.py",
        "return min(threshold, 40.0 if dtype == torch.float64 else 18.0)",
        "return threshold",
        "test_torch_namesakes.py::test_a_softplus_of_any_threshold_has_finite_slopes[torch.float32-1000.0]",
    ),
    mutant(
        "float64 is not served by a constant of float32", "backends/torch/namesakes.py",
        "problem.compute_dtype not in found.dtypes",
        "False",
        "test_torch_namesakes.py::test_skus_name_what_runs",
    ),
)  # fmt: skip

_EXAMPLES = (
    mutant(
        "the number of a step is no constant of a program", "frameworks/torch/operators.py",
        "kind = \"SymInt\" if kind == \"int\" and name in op.spec.scalars else kind", "pass",
        "test_torch_graphs.py::test_new_offsets_and_steps_compile_nothing",
    ),
    mutant(
        "random numbers are made of words that share nothing", "families/philox.py",
        "return _finished(finish, like, seed, offset, whole=True, part=part)",
        "return _finished(finish, like, seed, offset, part=part)",
        "test_random.py::test_numbers_follow_from_the_seed_and_the_places_alone",
    ),
    mutant(
        "a quantile is found from the nearer end", "families/philox.py",
        "from_end = above * _TOP + (1 - 2 * above) * word", "from_end = word",
        "test_random.py::test_normal_numbers_are_quantiles_of_words",
    ),
    mutant(
        "numbers that elements share are walked along by strides",
        "backends/cuda/schedules/elementwise.py",
        "kind, beside = 0, beside and not inner[-1]", "pass",
        "test_random.py::test_a_kernel_drops_examples[(1, 16)-row]",
    ),
    mutant(
        "Inductor takes no group of words for an index", "families/philox.py",
        "counter = number & _TOP, number >> 32", "counter = number, number >> 32",
        "test_random.py::test_a_compiler_multiplies_no_number_of_a_place_as_an_index",
    ),
    mutant(
        "a part begins where it is said to", "families/philox.py",
        "number = number + (begin + along * by) * step",
        "number = number + along * by * step",
        "test_random.py::test_a_part_has_the_words_of_its_places[whole0-first0-end0]",
    ),
    mutant(
        "a shard is told where it lies", "frameworks/torch/sharding.py",
        "options[\"part\"] = how.part", "pass",
        "test_torch_devices.py::test_every_op_on_shards[dropout]",
    ),
    mutant(
        "what is read again is not written over", "ops/topk_kl_div_with_logits.py",
        "{\"dlogits\": roles.typed_as(\"logits\")}", "{}",
        "test_outputs.py::test_what_is_read_again_is_not_written_over[numpy]",
    ),
    mutant(
        "where there is no bag no entry has a gradient", "ops/embedding_bag.py",
        " & (dy.shape[0] > 0)", "",
        "test_edges.py::test_entries_of_no_bag_have_no_gradient_whatever_the_table_holds[numpy]",
    ),
    mutant(
        "what stands for a head has its dtype", "integrations/transformers/forwards.py",
        "found.head: _Through(head)", "found.head: lambda x: x",
        "test_transformers.py::test_a_head_may_be_asked_for_its_dtype",
    ),
    mutant(
        "a norm that is given a gate is its own", "integrations/transformers/forwards.py",
        "if len(inputs) == 1 and not keywords:", "if True:",
        "test_transformers.py::test_a_norm_that_is_given_more_than_its_input_is_its_own",
    ),
    mutant(
        "a norm is of whole rows", "integrations/transformers/modules.py",
        " or not _of_rows(module, name, vectors[0].numel(), options)", "",
        "test_transformers.py::test_other_code_is_no_match",
    ),
    mutant(
        "a rotation with other names has its own code", "integrations/transformers/forwards.py",
        "function.__code__.replace()", "function.__code__",
        "test_transformers.py::test_the_attentions_of_all_layers_may_be_compiled_by_themselves",
    ),
    mutant(
        "layers share what a compiler makes of their rotation",
        "integrations/transformers/patching.py",
        "cache(forwards.attention)", "forwards.attention",
        "test_transformers.py::test_the_attentions_of_all_layers_may_be_compiled_by_themselves[Llama]",
    ),
    mutant(
        "an MLP is recomputed where it is asked for", "integrations/transformers/forwards.py",
        "if recompute and plain", "if plain",
        "test_transformers.py::"
        "test_the_inner_width_of_an_mlp_may_be_recomputed_instead_of_kept[Llama]",
    ),
    mutant(
        "nothing is recomputed within transforms", "integrations/transformers/forwards.py",
        "return kept and transforms() is None", "return kept",
        "test_transformers.py::test_nothing_is_recomputed_within_transforms",
    ),
    mutant(
        "what may draw again is not recomputed", "integrations/transformers/forwards.py",
        "if recompute and plain", "if recompute",
        "test_transformers.py::test_what_is_not_a_plain_projection_is_not_recomputed",
    ),
    mutant(
        "a share that is dropped has a gradient", "ops/softmax_dropout.py",
        "return scaled(s * (g - lib", "return scaled(dropped(s, p, seed, offset) * (g - lib",
        "test_softmax_dropout.py::test_a_dropped_share_has_a_gradient",
    ),
    mutant(
        "a batch is dropped at once", "ops/stochastic_depth.py",
        "if mode == \"batch\":", "if False:",
        "test_random.py::test_an_example_is_dropped_as_an_element_of_dropout_is[batch]",
    ),
    mutant(
        "a recorded step is replayed", "examples/training.py",
        "(self._replay or self.run)()", "self.run()",
        "test_train.py::test_a_replay_is_counted_as_a_step_and_not_as_calls",
    ),
    mutant(
        "the number of a step goes on along the device", "examples/training.py",
        "        self._number += 1\n", "        self._number += 0 * t.passes + (t.passes < 2)\n",
        "test_train.py::test_a_step_on_the_device_alone_has_the_same_bits",
    ),
    mutant(
        "weights that are trained in place are not those of others", "examples/training.py",
        "self.average = {name: xp.asarray(w, copy=True) for name, w in weights.items()}",
        "self.average = dict(weights)",
        "test_train.py::test_weights_and_their_average_share_no_memory",
    ),
    mutant(
        "the gradient of a mean over tokens is shared by them", "examples/digits.py",
        "plans.dot(dlogits, w[\"head\"].T) / c.tokens", "plans.dot(dlogits, w[\"head\"].T)",
        "test_train_digits.py::test_the_gradient_is_that_of_the_loss",
    ),
    mutant(
        "no image is in both parts", "examples/digits.py",
        "return Digits(images[cut:]", "return Digits(images",
        "test_train_digits.py::test_images_are_split_once_and_moved_by_a_pixel",
    ),
    mutant(
        "cuBLAS is told of an array whose rows lie as columns", "examples/graphs/cupy.py",
        "return x, max(x.strides[1] // x.itemsize, x.shape[0]), 0, _TURNED",
        "return x, max(x.strides[1] // x.itemsize, x.shape[0]), 0, _AS_IT_LIES",
        "test_train.py::test_products_of_cupy_are_those_of_the_definition",
    ),
)  # fmt: skip

MUTANTS = (*_CACHE, *_PLANS, *_CHECKS, *_VALUES, *_BODIES, *_FRAMEWORKS, *_MODULES, *_TOOLS,
           *_NAMESAKES, *_EXAMPLES)  # fmt: skip

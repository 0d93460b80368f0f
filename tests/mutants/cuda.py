"""Mutants of what leads to a launch: the store of kernels, geometry, schedules, records, frames."""

from __future__ import annotations

from . import mutant

_DAMAGE = "test_kernel_store.py::test_what_does_not_prove_itself_is_compiled_again"

_NAMES = "test_kernels.py::test_kernels_are_found_whatever_arrays_are_called"

_STORE = (
    mutant(
        "kept code proves its digest", "backends/cuda/store.py",
        "if (mark, of, length, sum_) == proof:", "if (mark, of, length) == proof[:3]:",
        f"{_DAMAGE}[one bit]",
    ),
    mutant(
        "kept code proves its length", "backends/cuda/store.py",
        "proof = (_MARK, digest, len(code), hashlib.sha256(code).digest())\n"
        "            if (mark",
        "proof = (_MARK, digest, length, hashlib.sha256(code[:length]).digest())\n"
        "            if (mark",
        f"{_DAMAGE}[longer]",
    ),
    mutant(
        "kept code is of this kernel", "backends/cuda/store.py",
        "if (mark, of, length, sum_) == proof:",
        "if (mark, length, sum_) == (proof[0], *proof[2:]):",
        "test_kernel_store.py::test_the_code_of_another_kernel_is_not_served",
    ),
    mutant(
        "links are not followed", "backends/cuda/store.py",
        "(\"O_NOFOLLOW\", ", "(", f"{_DAMAGE}[link]",
    ),
    mutant(
        "only plain files are read", "backends/cuda/store.py",
        "if not stat.S_ISREG(info.st_mode):", "if stat.S_ISDIR(info.st_mode):",
        "test_kernel_store.py::test_a_pipe_that_holds_code_is_no_kept_kernel",
    ),
    mutant(
        "what others could have written is not read", "backends/cuda/store.py",
        "info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)", "info.st_mode & stat.S_IWGRP",
        f"{_DAMAGE}[for others to write]",
    ),
    mutant(
        "what a group could have written is not read", "backends/cuda/store.py",
        "info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)", "info.st_mode & stat.S_IWOTH",
        f"{_DAMAGE}[for a group to write]",
    ),
    mutant(
        "files of others are not read", "backends/cuda/store.py",
        "info.st_uid not in {os.geteuid(), *owners} or others", "others",
        "test_kernel_store.py::test_only_this_user_and_root_are_believed",
    ),
    mutant(
        "a file longer than any kernel is not read", "backends/cuda/store.py",
        "if info.st_size > _LONGEST:", "if False:",
        "test_kernel_store.py::test_a_file_longer_than_any_kernel_is_not_read",
    ),
    mutant(
        "others see all of a kernel or nothing", "backends/cuda/store.py",
        "handle, whole = mkstemp(dir=self._temporary)",
        "handle, whole = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), str(path)",
        "test_kernel_store.py::test_what_does_not_prove_itself_is_compiled_again[link]",
    ),
    mutant(
        "a full disk leaves nothing behind", "backends/cuda/store.py",
        "            with suppress(OSError):\n                os.unlink(whole)\n            "
        "raise\n",
        "            raise\n",
        "test_kernel_store.py::test_a_full_disk_costs_a_compilation_and_leaves_nothing",
    ),
    mutant(
        "a full disk costs a compilation and no more", "backends/cuda/compiler.py",
        "        except OSError as error:\n            logger.info(\"%s for %s is not kept",
        "        except KeyError as error:\n            logger.info(\"%s for %s is not kept",
        "test_kernel_store.py::test_a_full_disk_costs_a_compilation_and_leaves_nothing",
    ),
    mutant(
        "folders are for this user alone", "backends/cuda/store.py",
        "def _private(folder: Path, mode: int = 0o700)",
        "def _private(folder: Path, mode: int = 0o777)",
        "test_kernel_store.py::test_folders_and_files_are_for_this_user_alone",
    ),
    mutant(
        "the folder of kernels is bounded", "backends/cuda/store.py",
        "if self._held > self._most:", "if False:",
        "test_kernel_store.py::test_the_least_recently_used_go_first",
    ),
    mutant(
        "a kernel that is used stays", "backends/cuda/store.py",
        "os.utime(handle if os.utime in os.supports_fd else path)", "pass",
        "test_kernel_store.py::test_the_least_recently_used_go_first",
    ),
    mutant(
        "what is being written is not dropped", "backends/cuda/store.py",
        "and not under_way:", ":",
        "test_kernel_store.py::test_what_a_crash_left_goes_once_it_is_old",
    ),
    mutant(
        "without a home kernels are compiled", "backends/cuda/compiler.py",
        "    except RuntimeError:\n        return None\n",
        "    except KeyError:\n        return None\n",
        "test_kernel_store.py::test_without_a_home_nothing_is_kept_and_that_is_said_once",
    ),
    mutant(
        "the key of a kernel has its architecture", "backends/cuda/compiler.py",
        "code=entry.source, code_type=\"c++\", options=_options(arch), target_type=\"cubin\"",
        "code=entry.source, code_type=\"c++\", options=_options(\"sm_90\"), target_type=\"cubin\"",
        "test_cuda_host.py::test_the_key_is_that_of_the_sources_that_are_read",
    ),
    mutant(
        "machine code that does not load is compiled again", "backends/cuda/launch.py",
        "compiler.forget(entry, arch)", "pass",
        "test_cuda_host.py::test_machine_code_that_does_not_load_is_compiled_again",
    ),
    mutant(
        "warmup says what the cache did not take", "backends/cuda/precompile.py",
        "if not compiler.kept(entry, arch):", "if False:",
        "test_kernel_store.py::test_a_full_disk_costs_a_compilation_and_leaves_nothing",
    ),
)  # fmt: skip

_WHEEL = "test_kernel_wheels.py::test_"

_WHEELS = (
    mutant(
        "packed code proves its digest", "backends/cuda/archive.py",
        "if hashlib.sha256(code).digest() != sum_:", "if False:",
        f"{_WHEEL}no_bit_of_a_group_can_change",
    ),
    mutant(
        "the index of an archive proves its digest", "backends/cuda/archive.py",
        "front).digest() != identity:", "front).digest() == b\"\":",
        f"{_WHEEL}what_is_damaged_is_compiled[the index]",
    ),
    mutant(
        "the same kernels make the same archive", "backends/cuda/archive.py",
        "sorted({kernel.digest: kernel for kernel in kernels}.values())",
        "{kernel.digest: kernel for kernel in kernels}.values()",
        f"{_WHEEL}the_same_kernels_make_the_same_file",
    ),
    mutant(
        "a packed kernel is the one that was asked for", "backends/cuda/archive.py",
        "(rest[0], rest[1], rest[2], rest[3]) if have == digest else None",
        "(rest[0], rest[1], rest[2], rest[3])",
        f"{_WHEEL}many_kernels_are_found_in_their_groups",
    ),
    mutant(
        "a wheel does not say when it was made", "backends/cuda/wheels.py",
        "(1980, 1, 1, 0, 0, 0)", "__import__(\"time\").localtime()[:6]",
        f"{_WHEEL}the_wheel_is_one_that_pip_installs",
    ),
    mutant(
        "what is unpacked is of this wheel", "backends/cuda/wheels.py",
        "b\"wheel\" + self.archive.identity + digest", "b\"wheel\" + digest",
        f"{_WHEEL}what_is_unpacked_is_kept_for_this_wheel_alone",
    ),
    mutant(
        "a wheel is for its architecture", "backends/cuda/wheels.py",
        "archive.description.get(\"arch\") != family or ", "",
        f"{_WHEEL}a_family_runs_the_code_of_its_first",
    ),
    mutant(
        "code of other devices does not run on Tegra", "backends/cuda/wheels.py",
        "(\"sm_80\", \"sm_86\", \"sm_89\")", "(\"sm_80\", \"sm_86\", \"sm_87\", \"sm_89\")",
        f"{_WHEEL}each_architecture_has_a_wheel_or_none_runs_its_code",
    ),
    mutant(
        "who may write a wheel may write this package", "backends/cuda/store.py",
        "others &= ~(like.st_mode & stat.S_IWGRP)", "others &= ~stat.S_IWGRP",
        f"{_WHEEL}a_wheel_is_believed_that_those_wrote_who_wrote_this_package",
    ),
    mutant(
        "a wheel's group is this package's", "backends/cuda/store.py",
        "if like.st_gid == info.st_gid:", "if True:",
        f"{_WHEEL}a_wheel_is_believed_that_those_wrote_who_wrote_this_package",
    ),
    mutant(
        "packed code that does not load is compiled", "backends/cuda/compiler.py",
        "_unfit.add((entry, arch))", "pass",
        f"{_WHEEL}code_that_the_driver_does_not_take_is_compiled",
    ),
    mutant(
        "a kernel that is in no wheel is another backend's without NVRTC",
        "backends/cuda/compiler.py",
        "if (reason := missing()) is not None:", "if (reason := None) is not None:",
        f"{_WHEEL}a_plan_runs_a_kernel_of_the_wheel_where_there_is_no_nvrtc",
    ),
    mutant(
        "a planned kernel that cannot be had is an error of ours", "backends/cuda/runner.py",
        "if key == self._usual:  # another", "if True:  # another",
        f"{_WHEEL}a_plan_says_what_no_wheel_has_for_a_rarer_call",
    ),
    mutant(
        "what is packed is what NVRTC makes", "tools/warmup.py",
        "and (to is not None or not compiler.packed(task.entry, task.arch))",
        "and not compiler.packed(task.entry, task.arch)",
        f"{_WHEEL}what_a_wheel_has_is_not_compiled_by_warmup",
    ),
    mutant(
        "a wheel lacks nothing that failed", "tools/warmup.py",
        "made = pack(to, wanted) if to is not None and not failed else []",
        "made = pack(to, wanted[:-1]) if to is not None else []",
        f"{_WHEEL}a_wheel_lacks_no_kernel_that_does_not_compile",
    ),
    mutant(
        "lists that no wheel has are launched one by one", "calls/lists.py",
        "        except Refusal as refusal:", "        except KeyError as refusal:",
        f"{_WHEEL}lists_that_no_wheel_has_are_launched_one_by_one",
    ),
    mutant(
        "benchmark rows are warmed beside wider parameters", "tools/warmup.py",
        "for mixed in mixtures(spec, plain.signature, dtype)[1:]:", "for mixed in ():",
        "test_warmup.py::test_parameters_wider_than_rows_are_planned_too",
    ),
    mutant(
        "where code is from tells no SKUs apart", "declaration/sku.py",
        "field(default=\"\", compare=False)", "field(default=\"\")",
        f"{_WHEEL}skus_that_differ_in_the_origin_of_the_code_are_equal",
    ),
)  # fmt: skip

_GEOMETRY = (
    mutant(
        "a launch has no more blocks across than fit", "backends/cuda/schedules/__init__.py",
        "if step.grid[0] > MOST_BLOCKS or step.grid[1] > MOST_ROWS:",
        "if step.grid[1] > MOST_ROWS:",
        "test_extents.py::test_what_kernels_cannot_count_is_refused_with_a_reason",
    ),
    mutant(
        "a launch has no more blocks down than fit", "backends/cuda/schedules/__init__.py",
        "or step.grid[1] > MOST_ROWS:", ":",
        "test_extents.py::test_a_grid_is_within_both_limits[grid1]",
    ),
    mutant(
        "atomics are refused where bits matter", "backends/cuda/schedules/__init__.py",
        "if call.problem.choices.deterministic and not steps.deterministic:", "if False:",
        "test_cuda_host.py::test_atomics_are_refused_where_determinism_is_asked_for",
    ),
    mutant(
        "atomics say that they are not deterministic", "backends/cuda/schedules/indexed/scatter.py",
        "variant=ATOMIC, deterministic=False, stable=False,\n", "variant=ATOMIC,\n",
        "test_cuda_host.py::test_atomics_are_refused_where_determinism_is_asked_for",
    ),
    mutant(
        "a SKU tells deterministic from bit-stable", "backends/cuda/__init__.py",
        "deterministic, deterministic and stable)", "deterministic, deterministic)",
        "test_autotune.py::test_the_guarantee_is_that_of_the_steps[True-False]",
    ),
    mutant(
        "a SKU has the workspace of its steps", "backends/cuda/__init__.py",
        "workspace_size=steps.workspace_size,", "",
        "test_cuda_host.py::test_a_form_that_needs_too_much_room_gives_way",
    ),
    mutant(
        "workspaces are counted in bytes", "backends/cuda/launch_plan.py",
        "named(dtype).itemsize * math.prod(shape)", "math.prod(shape)",
        "test_autotune.py::test_workspaces_are_counted_in_bytes",
    ),
    mutant(
        "large offsets have 64 bits", "backends/cuda/geometry.py",
        "return max(numbers, default=0) >= _NARROW", "return max(numbers, default=0) >= 2**40",
        "test_cuda_host.py::test_64_bits_are_used_before_32_overflow",
    ),
    mutant(
        "the reach counts every stride", "backends/cuda/geometry.py",
        "(extent - 1) * abs(s) for s in strides", "(extent - 1) * s for s in strides",
        "test_cuda_host.py::test_no_offset_is_beyond_the_reach",
    ),
    mutant(
        "dimensions merge where strides say so", "backends/cuda/geometry.py",
        "if steps == tuple([step * inner for step in below]):",
        "if steps[0] == below[0] * inner:",
        "test_cuda_host.py::test_merged_dimensions_visit_the_same_elements",
    ),
    mutant(
        "division by multiplication is exact", "backends/cuda/geometry.py",
        "((1 << shift) - size)) // size + 1", "((1 << shift) - size)) // size",
        "test_cuda_host.py::test_division_by_multiplication_is_exact",
    ),
    mutant(
        "numbers that do not fit their field are refused", "backends/cuda/geometry.py",
        "except struct.error:", "except KeyError:",
        "test_extents.py::test_what_kernels_cannot_count_is_refused_with_a_reason",
    ),
    mutant(
        "structs are aligned as C++ aligns them", "backends/cuda/geometry.py",
        "self._codes = \"@\"", "self._codes = \"=\"",
        "test_cuda_host.py::test_fields_are_packed_as_cpp_aligns_them",
    ),
    mutant(
        "too many dimensions are refused", "backends/cuda/__init__.py",
        "walkable(merged(x.shape, (x.strides,)))", "pass",
        "test_cuda_host.py::test_only_dimensions_that_do_not_merge_count",
    ),
    mutant(
        "memory that does not have the values is left alone", "backends/cuda/__init__.py",
        "if any(x.alignment == 0 for x in problem.given):", "if False:",
        "test_cuda_host.py::test_memory_that_does_not_have_the_values_is_left_to_others",
    ),
    mutant(
        "an old package is refused", "backends/cuda/__init__.py",
        "for part in have.split(\".\")[:2]) < least:", "for part in have.split(\".\")[:2]) < (0,):",
        "test_cuda_host.py::test_an_old_package_is_named_with_what_is_needed[cuda-core-1.1.9-1.2]",
    ),
    mutant(
        "a record of another architecture is refused", "backends/cuda/__init__.py",
        "return None if have == arch else f\"for {arch}, {device} is {have}\"", "return None",
        "test_cuda_host.py::test_a_record_of_another_device_cannot_be_used",
    ),
    mutant(
        "shared memory is never taken back", "backends/cuda/launch.py",
        "if shared > _granted.get((entry, facts.ordinal), 0):", "if True:",
        "test_cuda_host.py::test_shared_memory_is_asked_for_and_never_taken_back",
    ),
    mutant(
        "vectors are as wide as addresses allow", "backends/cuda/launch_plan.py",
        "return max(self.alignment // (itemsize or self.itemsize), 1)",
        "return max(WIDEST // (itemsize or self.itemsize), 1)",
        "test_cupy_host.py::test_a_view_off_the_widest_access_has_a_plan_of_its_own",
    ),
    mutant(
        "planes are of one type", "backends/cuda/__init__.py",
        'schedule == "planes" and spec.wide == ("parameter",)', 'schedule == "planes"',
        "test_mixed.py::test_schedules_say_which_wider_values_they_take",
    ),
    mutant(
        "rows that are losses are of one type", "backends/cuda/schedules/rows.py",
        "if of.costs and call.mixed_rows:", "if False:",
        "test_mixed.py::test_schedules_say_which_wider_values_they_take",
    ),
    mutant(
        "columns are of one type", "backends/cuda/schedules/rows.py",
        "not (of.masks or of.columns or of.biases or call.mixed_rows):",
        "not (of.masks or of.columns):",
        "test_mixed.py::test_schedules_say_which_wider_values_they_take",
    ),
    mutant(
        "an architecture has its own figures", "backends/cuda/launch_plan.py",
        "return records[_tuned(self.arch, *records)]", "return records[\"sm_90\"]",
        "test_tuning.py::test_the_record_is_that_of_the_latest_architecture_before[sm_103-sm_100]",
    ),
    mutant(
        "a schedule has no figure but those of its record", "backends/cuda/schedules/window.py",
        "else tuning.rows_of_two", "else 4",
        "test_tuning.py::test_a_record_is_all_that_an_architecture_needs",
    ),
    mutant(
        "a float32 cotangent is read as one", "backends/cuda/schedules/cross_entropy.py",
        "flags |= _WIDE_DLOSS * call.is_wide(dloss) | ", "flags |= ",
        "test_emulated_cross_entropy.py::"
        "test_a_cotangent_goes_into_the_gradient_and_not_the_loss[four blocks, f16]",
    ),
    mutant(
        "logits are known by their axis", "backends/cuda/schedules/cross_entropy.py",
        "call.view(row.name), call.view(target),", 'call.view("logits"), call.view(target),',
        f"{_NAMES}[cross_entropy]",
    ),
    mutant(
        "gradients of logits are known by their role", "backends/cuda/schedules/cross_entropy.py",
        "large = [x for x, role in outs if role.flows and not role.accumulated]",
        'large = [call.out(i) for i, p in enumerate(form.outputs) if p.name == "dlogits"]',
        f"{_NAMES}[cross_entropy_backward]",
    ),
    mutant(
        "shares of classes are known by their axis", "backends/cuda/schedules/nll_loss.py",
        "if p.names == along]", 'if p.name == "weight"]', f"{_NAMES}[nll_loss]",
    ),
    mutant(
        "halves of a packed array are told apart", "backends/cuda/schedules/elementwise.py",
        "return both[::-1] if swapped else both", "return both",
        "test_emulated_views.py::test_views_that_run_backwards_give_what_copies_give[gated.cu]",
    ),
    mutant(
        "blocks ask ahead past the caches only", "backends/cuda/schedules/elementwise.py",
        "if early else items", "if True else items",
        "test_kernels.py::test_blocks_ask_ahead_past_the_caches_only[1048576-False]",
    ),
    mutant(
        "the rule is one vector of each input", "backends/cuda/schedules/elementwise.py",
        "rule, *others = depths", "*others, rule = depths",
        "test_autotune.py::test_the_rule_is_one_vector_of_each_input[lerp-2-depths1]",
    ),
    mutant(
        "a block that is not alone does not deliver", "backends/cuda/schedules/reduce.py",
        "* (blocks == 1)", "* (blocks > 0)",
        "test_cuda_host.py::test_few_rows_have_their_sum_from_fewer_kernels[mse_loss-513-2]",
    ),
    mutant(
        "the sum of nothing is written", "backends/cuda/schedules/reduce.py",
        "return Steps((*first, last), (((max(blocks, 1),)",
        "return Steps(first, (((max(blocks, 1),)",
        "test_emulated_losses.py::test_nothing_has_no_mean[mean-nan]",
    ),
    mutant(
        "a lookup reads the rows that are asked for", "backends/cuda/schedules/indexed/gather.py",
        "if lanes.across and not lanes.beside and", "if lanes.across and lanes.beside > 1 and",
        "test_cuda_host.py::test_a_lookup_reads_the_rows_that_are_asked_for[bfloat16-src0-shape0-0]",
    ),
    mutant(
        "rows of a last axis are tiles", "backends/cuda/schedules/indexed/gather.py",
        "if lanes.across and not lanes.beside and", "if not lanes.beside and",
        "test_cuda_host.py::test_indices_of_neighbours_are_handed_out_on_chip[bfloat16-1]",
    ),
    mutant(
        "rows of less than a sector are tiles", "backends/cuda/schedules/indexed/gather.py",
        " and lanes.count * call.itemsize >= _SECTOR:", ":",
        "test_cuda_host.py::test_rows_shorter_than_a_sector_are_handed_out_on_chip",
    ),
    mutant(
        "atomics begin at zero", "backends/cuda/schedules/indexed/scatter.py",
        "zero = () if call.add else (Zero(out.slot, nbytes),)", "zero = ()",
        "test_emulated.py::test_a_form_adds_up_in_any_order_of_threads[float32-atomics]",
    ),
    mutant(
        "digits of sums leave room for carries", "backends/cuda/schedules/indexed/scatter.py",
        "bits = 62 - index.shape[axis].bit_length()", "bits = 63",
        "test_emulated.py::test_digits_do_not_carry[float32-fixed point]",
    ),
)  # fmt: skip

_CALLS = (
    mutant(
        "arrays aligned less are a misfit", "backends/cuda/runner.py",
        "        if self._aligned(words) < self._alignment:\n            raise Misfit\n", "",
        "test_cuda_host.py::test_arrays_aligned_less_are_no_business_of_a_plan[swiglu]",
    ),
    mutant(
        "the short way looks at addresses", "backends/cuda/fast_call.py",
        "if ({either_given}) & mask:", "if False:",
        "test_cuda_host.py::test_arrays_aligned_less_are_no_business_of_a_plan[swiglu]",
    ),
    mutant(
        "the short way looks at the addresses of outputs", "backends/cuda/fast_call.py",
        "if ({either_made}) & mask:", "if False:",
        "test_cuda_host.py::test_what_is_not_as_planned_goes_the_general_way",
    ),
    mutant(
        "the short way looks at the layout of outputs", "backends/cuda/fast_call.py",
        "if {differ}:", "if False:",
        "test_cuda_host.py::test_outputs_of_another_layout_are_planned_for",
    ),
    mutant(
        "the short way looks at the dtype of a sum", "backends/cuda/fast_call.py",
        "wider = tuple([len(outputs.may_have(problem, x)) > 1", "wider = tuple([False",
        "test_cuda_host.py::test_sums_that_are_wider_or_added_to_are_planned_for",
    ),
    mutant(
        "no call begins again into given outputs", "backends/cuda/fast_call.py",
        "checks = _CHECKS if i else \"\"", "checks = \"\"",
        "test_cuda_host.py::test_no_call_begins_again_into_outputs_that_may_be_inputs",
    ),
    mutant(
        "the short way looks at the current device", "backends/cuda/fast_call.py",
        "or state[0] or current_device() != ordinal:", "or state[0]:",
        "test_current_device.py::test_calls_on_another_device",
    ),
    mutant(
        "the short way raises what was reported", "backends/cuda/fast_call.py",
        "accumulate or state[0] or", "accumulate or",
        "test_cuda_host.py::test_the_next_call_raises_what_a_kernel_reported",
    ),
    mutant(
        "workspaces of one allocation lie apart", "backends/cuda/fast_call.py",
        "begins.append(size)", "begins.append(0)",
        "test_cuda_host.py::test_several_launches_go_the_short_way[workspaces]",
    ),
    mutant(
        "the short way makes each output in its dtype", "backends/cuda/fast_call.py",
        "strides_of(x), dtype(x.dtype), arrays", "strides_of(x), dtype(problem.dtype), arrays",
        "test_cuda_host.py::test_several_launches_go_the_short_way[two dtypes]",
    ),
    mutant(
        "a launch that fails ends the short way", "backends/cuda/fast_call.py",
        "stream, struct{i}[1], 0)[0]:", "stream, struct{i}[1], 0) is None:",
        "test_cuda_host.py::test_a_call_of_which_a_launch_fails_begins_again[workspaces]",
    ),
    mutant(
        "zeros that fail end the short way", "backends/cuda/fast_call.py",
        "nbytes{i}, stream)[0]:", "nbytes{i}, stream) is None:",
        "test_cuda_host.py::test_a_call_of_which_a_launch_fails_begins_again[zeros]",
    ),
    mutant(
        "a call raises what was reported", "backends/cuda/runner.py",
        "        if self._state[0]:\n            self._listener.raise_pending()\n", "",
        "test_cuda_host.py::test_the_next_call_raises_what_a_kernel_reported",
    ),
    mutant(
        "a launch that fails is an error", "backends/cuda/launch.py",
        "checked(in_context(self._ordinal, launch_kernel, *given))",
        "in_context(self._ordinal, launch_kernel, *given)",
        "test_current_device.py::test_a_launch_that_fails",
    ),
    mutant(
        "a call makes the device of its arrays current", "backends/cuda/runner.py",
        "if self.arrays.current_device() != self._ordinal:", "if False:",
        "test_current_device.py::test_calls_on_another_device",
    ),
    mutant(
        "the caller's context is current afterwards", "backends/cuda/launch.py",
        "        driver.cuCtxSetCurrent(before)\n", "        pass\n",
        "test_current_device.py::test_the_record_of_another_device",
    ),
    mutant(
        "outputs of another layout have a program of their own", "backends/cuda/runner.py",
        "results, layout = outs, self._layout(outs)", "results, layout = outs, None",
        "test_cuda_host.py::test_outputs_of_another_layout_are_planned_for",
    ),
    mutant(
        "wider sums have a program of their own", "backends/cuda/runner.py",
        "return wide if any(wide) else ()", "return ()",
        "test_cuda_host.py::test_sums_that_are_wider_or_added_to_are_planned_for",
    ),
    mutant(
        "a report is raised once", "backends/cuda/index_errors.py",
        "            record.state = 0\n", "",
        "test_cuda_host.py::test_the_next_call_raises_what_a_kernel_reported",
    ),
    mutant(
        "a report that is being written is not read", "backends/cuda/index_errors.py",
        "if record.state != _READY:", "if not record.state:",
        "test_cuda_host.py::test_the_next_call_raises_what_a_kernel_reported",
    ),
    mutant(
        "a report says where the index stands", "backends/cuda/index_errors.py",
        "for extent in reversed(shape):", "for extent in shape:",
        "test_cuda_host.py::test_the_next_call_raises_what_a_kernel_reported",
    ),
    mutant(
        "variants are measured for noise", "backends/cuda/tune.py",
        "return best if medians[best] < _AHEAD * medians[first] else first", "return best",
        "test_autotune.py::test_noise_does_not_overrule_the_rule",
    ),
    mutant(
        "a stream that is captured is not measured", "backends/cuda/tune.py",
        "    if _captured(stream, facts.ordinal):", "    if False:",
        "test_autotune.py::test_a_captured_stream_is_not_measured",
    ),
    mutant(
        "a thread without a context gets one", "backends/cuda/launch.py",
        "    if found[0] in _NO_CONTEXT:", "    if False:",
        "test_current_device.py::test_a_thread_that_has_no_context",
    ),
    mutant(
        "zeros too", "backends/cuda/launch.py",
        "in_context(self._ordinal, clear, words[0], 0, *self.parts, stream)",
        "clear(words[0], 0, *self.parts, stream)",
        "test_current_device.py::test_a_thread_that_has_no_context",
    ),
    mutant(
        "variants that need too much are not measured", "backends/cuda/tune.py",
        "if limit is None or runner.steps.workspace_size <= limit:", "if True:",
        "test_autotune.py::test_variants_that_refuse_or_need_too_much_are_not_measured",
    ),
)  # fmt: skip

_WRONG = "test_ffi_frames.py::test_another_frame_is_an_error_and_launches_nothing"

_VALUES = (
    mutant(
        "the shortest way passes the address of a run-time value", "backends/cuda/fast_call.py",
        "words.append(arrays.POINTER.format(value) if reads else value)", "words.append(value)",
        "test_values.py::test_a_kernel_is_given_the_address",
    ),
    mutant(
        "the general way passes the address of a run-time value", "backends/cuda/runner.py",
        "values = [pointer(x) if dtype else x for x, dtype in pairs]",
        "values = [x for x, dtype in pairs]",
        "test_values.py::test_a_kernel_is_given_the_address",
    ),
    mutant(
        "run-time values in memory are behind the pointers", "backends/cuda/launch_plan.py",
        "reads = \", \".join([str(8 * len(self.front)), *kinds])",
        "reads = \", \".join([str(8 * len(self.front) - 8), *kinds])",
        "test_values.py::test_a_kernel_is_given_the_address",
    ),
    mutant(
        "arguments that are copied have room on chip", "backends/cuda/schedules/__init__.py",
        "if any(step.shared > most - _NEAR for step in steps.kernels):", "if False:",
        "test_emulated_values.py::test_what_fills_a_chip_leaves_room_for_the_arguments",
    ),
)  # fmt: skip

_FRAMES = (
    mutant(
        "an unknown extension of a frame is passed over", "backends/cuda/xla.py",
        "        if not extension:\n            return False\n",
        "        if not extension:\n            return True\n",
        "test_ffi_frames.py::test_extensions_that_are_not_known_are_passed_over",
    ),
    mutant(
        "a frame that is too short is refused", "backends/cuda/xla.py",
        "if size < FRAME_SIZE:", "if False:", f"{_WRONG}[a frame too short]",
    ),
    mutant(
        "operands are counted", "backends/cuda/xla.py",
        "if count != len(self._kinds):",
        "if count < len(self._kinds):",
        f"{_WRONG}[three operands]",
    ),
    mutant(
        "operands are buffers", "backends/cuda/xla.py",
        "if kinds != self._kinds:", "if False:", f"{_WRONG}[no buffers]",
    ),
    mutant(
        "operands have the dtypes that were compiled for", "backends/cuda/xla.py",
        "if dtypes != self._dtypes:", "if False:", f"{_WRONG}[another dtype]",
    ),
    mutant(
        "run-time values are counted", "backends/cuda/xla.py",
        "if (dtype, size) != (DTYPES[\"int64\"], self._count):",
        "if dtype != DTYPES[\"int64\"]:", f"{_WRONG}[one value]",
    ),
    mutant(
        "run-time values are float64", "backends/cuda/xla.py",
        "if (dtype, size) != (DTYPES[\"int64\"], self._count):", "if size != self._count:",
        f"{_WRONG}[narrow values]",
    ),
    mutant(
        "attributes are arrays", "backends/cuda/xla.py",
        "if kind != IS_ARRAY:", "if False:", f"{_WRONG}[a scalar]",
    ),
    mutant(
        "an error of a handler is that of the program", "backends/cuda/xla.py",
        "return _failed(api, error, INTERNAL_ERROR)", "return 0",
        "test_ffi_frames.py::test_what_is_raised_is_the_error_of_the_program[RuntimeError]",
    ),
    mutant(
        "an interrupt is raised again behind XLA", "backends/cuda/xla.py",
        "            timer.start()\n", "",
        "test_ffi_frames.py::test_an_interrupt_is_one_for_who_called",
    ),
    mutant(
        "a target is named by all that is launched", "backends/cuda/jax.py",
        "what = repr((runner.problem.key, runner.steps.variant, __version__))",
        "what = repr((runner.problem.spec.name, runner.steps.variant, __version__))",
        "test_jax_kernels.py::test_a_target_is_named_by_all_that_is_launched",
    ),
    mutant(
        "memory may be freed while a graph is captured", "backends/cuda/launch.py",
        "        with while_capturing():\n            driver.cuMemFree",
        "        if True:\n            driver.cuMemFree",
        "test_jax_kernels.py::test_memory_may_be_freed_while_a_graph_is_captured",
    ),
    mutant(
        "nothing is collected while a graph is captured", "testing/timing.py",
        "    gc.collect()\n    gc.disable()\n", "    gc.collect()\n",
        "test_bench.py::test_nothing_is_collected_while_a_graph_is_captured",
    ),
    mutant(
        "a forced backend does not fall back on another platform", "backends/cuda/jax.py",
        "default = None if problem.choices.backend else plain", "default = plain",
        "test_jax_kernels.py::test_another_platform_runs_the_body_unless_the_backend_is_forced",
    ),
    mutant(
        "a shard of random words lies where its device does", "backends/cuda/jax.py",
        "jax.lax.axis_index(place) * n if place else 0", "0",
        "test_jax_kernels.py::test_over_four_devices[dropout]",
    ),
    mutant(
        "results of a share are summed over what they lack", "backends/cuda/jax.py",
        "[jax.lax.psum(x, at) if at else x for x, at in zip(found, sums, strict=True)]",
        "list(found)",
        "test_jax_kernels.py::test_over_four_devices[add_rms_norm]",
    ),
)  # fmt: skip

_CUPY = (
    mutant(
        "what lies across elements is refused", "libraries/cupy.py",
        "if x.size and any(number % min(size, 16) for number in (address, *steps)):", "if False:",
        "test_cupy_host.py::test_what_lies_across_elements_is_refused",
    ),
    mutant(
        "CuPy's plans differ by alignment", "libraries/cupy.py",
        "return (\"cupy\", *_FACTS(x), alignment(x.data.ptr))", "return (\"cupy\", *_FACTS(x))",
        "test_cupy_host.py::test_every_difference_is_another_alias",
    ),
    mutant(
        "what a search found is raised", "calls/ranges.py",
        "        if there:\n", "        if False:\n",
        "test_cupy_host.py::test_what_was_found_is_raised_when_it_is_there",
    ),
    mutant(
        "any body raises what a search found", "calls/body.py",
        "elif ranges.begun:", "elif False:",
        "test_ranges.py::test_any_body_raises_what_a_search_found",
    ),
)  # fmt: skip

MUTANTS = (*_STORE, *_WHEELS, *_GEOMETRY, *_CALLS, *_VALUES, *_FRAMES, *_CUPY)

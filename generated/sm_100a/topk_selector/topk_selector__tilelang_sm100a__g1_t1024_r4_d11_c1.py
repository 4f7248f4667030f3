"""topk_selector__tilelang_sm100a__g1_t1024_r4_d11_c1

Generated from templates/tilelang/topk_selector.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/topk_selector.py, not this file. Knobs: group=1, threads=1024, keep=4, digit=11, resident=1.

roles
  select     threads 0..1023  every warp owns a run of 128-column tiles
buffers
  hist       5312 int32, shared
  list_keys  2048 uint32, shared
  list_columns 2048 int32, shared
  above      9216 uint8, shared
  equal      9216 uint8, shared
  chosen     2048 int32, shared
  decided    5 int32, shared
  listed     1 int32, shared
  warp_sums  32 int32, shared
  keys       1024x4 uint32, registers of select
totals: 1024 threads, 64408 of 232448 bytes of shared memory, grid (rows, 1)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import topk_selector as device

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}


def program():
    rows = T.dynamic("rows")
    stride = T.dynamic("stride")
    b = T.dynamic("b")
    max_pages = T.dynamic("max_pages")
    k = T.dynamic("k")

    @T.prim_func
    def topk_selector__tilelang_sm100a__g1_t1024_r4_d11_c1(
        logits: T.Tensor((rows, stride), "float32"),
        row_starts: T.Tensor((rows,), "int32"),
        row_ends: T.Tensor((rows,), "int32"),
        block_table: T.Tensor((b, max_pages), "int32"),
        next_n: T.int32,
        page_size: T.int32,
        indices: T.Tensor((rows, k), "int32"),
    ):
        with T.Kernel(rows, 1, threads=1024) as (row, rank):
            T.import_source(device.DEVICE_SOURCE)
            hist = T.alloc_shared((5312,), "int32")
            list_keys = T.alloc_shared((2048,), "uint32")
            list_columns = T.alloc_shared((2048,), "int32")
            above = T.alloc_shared((9216,), "uint8")
            equal = T.alloc_shared((9216,), "uint8")
            chosen = T.alloc_shared((2048,), "int32")
            decided = T.alloc_shared((5,), "int32")
            listed = T.alloc_shared((1,), "int32")
            warp_sums = T.alloc_shared((32,), "int32")
            keys = T.alloc_local((4,), "uint32")
            # Digit, keys still needed of it, keys in it; lower ranks' keys above it and in it.
            state = T.alloc_local((5,), "int32")
            before = T.alloc_local((2,), "int32")
            total = T.alloc_local((2,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            start = T.alloc_var("int32", init=row_starts[row])
            end = T.alloc_var("int32", init=row_ends[row])
            # Every round has its own bins: none waits for readers of the one before.
            for i in device.rolled(2):
                if i * 1024 + thread < 1328:
                    for j in T.vectorized(4):
                        hist[(i * 1024 + thread) * 4 + j] = 0
            if thread == 0:
                listed[0] = 0
            start = T.max(start, 0)
            end = T.min(end, stride)

            if end - start <= k:
                for i in device.rolled(T.ceildiv(k, 1024)):
                    slot = (i * 1 + rank) * 1024 + thread
                    if slot < k:
                        if slot < end - start:
                            device.store_id(indices, row, slot, slot, block_table, next_n, page_size)
                        else:
                            indices[row, slot] = -1
            else:
                # Tiles of 128 columns, aligned to 128 bytes. Each warp owns a run of neighbouring tiles, which it takes in
                # batches of 1; the last batch stays in registers, so a row of one batch is read once.
                origin = T.alloc_var("int32", init=start // 32 * 32)
                run = T.alloc_var("int32", init=T.ceildiv(T.ceildiv(end - origin, 128), 32))
                batches = T.alloc_var("int32", init=T.ceildiv(run, 1))
                base = T.alloc_var("int32", init=origin + rank * 32 * run * 128)
                column = T.alloc_var("int32")
                batch = T.alloc_var("int32")
                held = T.alloc_var("int32", init=-1)
                # The undecided keys are those in [begin, begin + span]; a round decides their bits from `low` on.
                digit = T.alloc_var("int32", init=0)
                low = T.alloc_var("int32", init=32)
                bits = T.alloc_var("int32")
                begin = T.alloc_var("uint32", init=0)
                span = T.alloc_var("uint32", init=T.uint32(0xFFFFFFFF))
                pending = T.alloc_var("int32")
                counting = T.alloc_var("int32")
                collected = T.alloc_var("int32", init=0)
                entries = T.alloc_var("int32", init=0)
                state[1] = k
                state[2] = 0x7FFFFFFF
                state[3] = 0
                state[4] = 0

                # At most three digits and one collecting pass over the row.
                for turn in device.rolled(4):
                    pending = T.if_then_else((state[1] < state[2]) & (digit < 3), 1, 0)
                    if (collected == 1) & ((pending == 0) | (entries <= 64)):
                        break
                    counting = T.if_then_else((pending == 1) & ((collected == 1) | (state[2] > 2048)), 1, 0)
                    bits = 0
                    if counting == 1:
                        bits = T.min(11, low)
                    T.sync_threads()
                    if collected == 0:
                        for step in device.rolled(batches):
                            batch = T.if_then_else(turn % 2 == 0, step, batches - 1 - step)
                            column = base + (warp * run + batch * 1) * 128 + lane * 4
                            if batch != held:
                                for i in T.unroll(1):
                                    device.load_tile(
                                        keys, i * 4, logits, row, column + i * 128, T.if_then_else(batch * 1 + i < run, end, 0)
                                    )
                                for i in T.unroll(1):
                                    device.make_keys(keys, i * 4, column + i * 128, start, end)
                                held = batch
                            for i in T.unroll(1):
                                if batch * 1 + i < run:
                                    if counting == 1:
                                        for j in T.unroll(4):
                                            device.count_digit(
                                                hist, 192 + digit * 2048, keys[i * 4 + j], low - bits, begin, span
                                            )
                                    else:
                                        device.collect(
                                            above, equal, listed, list_keys, list_columns, keys, i * 4, column + i * 128 - base,
                                            begin, span, pending, lane,
                                        )
                    else:
                        for i in device.rolled(T.ceildiv(entries, 1024)):
                            if i * 1024 + thread < listed[0]:
                                device.count_digit(
                                    hist, 192 + digit * 2048, list_keys[i * 1024 + thread], low - bits, begin, span
                                )
                    if counting == 1:
                        device.settle_alone(
                            state, decided, hist, 192 + digit * 2048, 1 << bits, 2,
                            warp_sums, thread, warp, 32, lane,
                        )
                        digit = digit + 1
                        low = low - bits
                        begin = begin + (T.cast(state[0], "uint32") << T.cast(low, "uint32"))
                        span = (T.uint32(1) << T.cast(low, "uint32")) - T.uint32(1)
                    else:
                        collected = 1
                        entries = T.if_then_else(pending == 1, state[2], 0)

                T.sync_threads()
                if entries > 0:
                    if entries <= 64:
                        device.rank_listed(above, list_keys, list_columns, entries, state[1], thread)
                    else:
                        device.mark_listed(above, equal, list_keys, list_columns, entries, begin, span, thread, 1024)
                    T.sync_threads()

                # Each thread turns some bits of the bitmaps into positions; equal ones count from the lowest rank.
                unit = T.alloc_var("int32", init=T.if_then_else(run == 1, 4, 8))
                width = T.alloc_var("int32", init=T.ceildiv(run, 2))
                first = T.alloc_var("int32", init=T.min(thread * width, run * 512))
                last = T.alloc_var("int32", init=T.min(thread * width + width, run * 512))
                if run == 1:
                    first = thread
                    last = thread + 1
                take = T.alloc_var("int32", init=T.max(state[1] - state[4], 0))
                skip = T.alloc_var("int32", init=state[3] + T.min(state[4], state[1]))
                device.scan_marks(before, total, above, equal, first, last, unit, warp_sums, warp, 32, lane)
                device.emit(chosen, above, equal, first, last, unit, before, take, base - start)
                T.sync_threads()
                for i in device.rolled(T.ceildiv(total[0] + T.min(total[1], take), 1024)):
                    slot = i * 1024 + thread
                    if slot < total[0] + T.min(total[1], take):
                        device.store_id(indices, row, skip + slot, chosen[slot], block_table, next_n, page_size)

    return topk_selector__tilelang_sm100a__g1_t1024_r4_d11_c1

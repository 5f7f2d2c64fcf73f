/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and fills: exact results, exact extents, both sides, with paging on and off.
 */
#include "check.h"

enum { BYTES = 8192, PITCH = 512, WIDTH = 100, HEIGHT = 5 };

static unsigned char pattern[BYTES], seen[BYTES];

typedef struct {
  session* with;
  CUdeviceptr a, b;
} pair;

static void check_touch(session* with, uint64_t address, uint64_t bytes, uint32_t access,
                        int kind) {
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->kind == kind);
  for (uint32_t i = 0; i < event->count && i < 8; ++i) {
    const penstock_touch* const each = &event->touches[i];
    if (each->address == address && each->bytes == bytes && each->access == access) return;
  }
  fprintf(stderr, "no touch of %lu bytes at %lx; the first is of %lu at %lx\n",
          (unsigned long)bytes, (unsigned long)address, (unsigned long)event->touches[0].bytes,
          (unsigned long)event->touches[0].address);
  exit(1);
}

static void check_copy(session* with, uint64_t address, uint64_t bytes, uint32_t access) {
  check_touch(with, address, bytes, access, PENSTOCK_WORK_COPY);
  CHECK(count_events(with, DOUBLE_BEGIN) == count_events(with, DOUBLE_END));
}

/* Addresses among what comes from the host, wherever it goes to. */
static void tables(const pair* p) {
  driver_api* const cu = &p->with->cu;
  const uint64_t table[4] = {1, p->b + 24, 7, p->a};
  char shifted[sizeof(table) + 4] = {0};
  memcpy(shifted + 4, table, sizeof(table));
  for (int i = 0; i < 2; ++i) {
    if (i == 0) CHECK(cu->cuMemcpyHtoDAsync_v2(p->a, table, sizeof(table), p->with->stream) == 0);
    if (i == 1) CHECK(cu->cuMemcpyHtoD_v2(p->a + 4, shifted, sizeof(shifted)) == 0);
    const double_event* const event = last_event(p->with, DOUBLE_BEGIN);
    CHECK(event->count == 3);
    CHECK(event->touches[0].access == PENSTOCK_ACCESS_WRITE);
    for (int k = 1; k < 3; ++k) CHECK(event->touches[k].access == PENSTOCK_ACCESS_HELD);
    CHECK(event->touches[1].address == p->b + 24 && event->touches[2].address == p->a);
    CHECK(event->touches[1].bytes == p->a + 8 * (i + 1)); /* where it will stand */
    CHECK(event->touches[2].bytes == p->a + 8 * (i + 3));
  }
  CHECK(cu->cuMemcpyHtoD_v2(p->a, pattern, BYTES) == 0);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->count == 1);
  /* The forms that do not say on which side the host is. */
  CUdeviceptr to = p->a;
  CUdeviceptr from = (uintptr_t)table;
  size_t bytes = sizeof(table);
  for (int i = 0; i < 3; ++i) {
    if (i == 0) CHECK(cu->cuMemcpy(to, from, bytes) == 0);
    if (i == 1) CHECK(cu->cuMemcpyAsync(to, from, bytes, p->with->stream) == 0);
    if (i == 2) {
      CHECK(cu->cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, NULL, NULL, 0, p->with->stream) == 0);
    }
    const double_event* const event = last_event(p->with, DOUBLE_BEGIN);
    CHECK(event->count == 3 && event->touches[2].access == PENSTOCK_ACCESS_HELD);
  }
}

/* Addresses among rows that come from the host, and rows that are one line. */
static void tables_in_rows(const pair* p) {
  driver_api* const cu = &p->with->cu;
  const uint64_t rows[2][3] = {{1, p->b + 24, 7}, {p->a, 2, 3}};
  CUDA_MEMCPY2D copy = {.srcMemoryType = 1,
                        .srcHost = rows,
                        .srcPitch = sizeof(rows[0]),
                        .dstMemoryType = 2,
                        .dstDevice = p->a,
                        .dstPitch = PITCH,
                        .WidthInBytes = 2 * sizeof(uint64_t),
                        .Height = 2};
  CHECK(cu->cuMemcpy2D_v2(&copy) == 0);
  const double_event* event = last_event(p->with, DOUBLE_BEGIN);
  CHECK(event->count == 3);
  check_copy(p->with, p->a, PITCH + 16, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  check_copy(p->with, p->b + 24, p->a + 8, PENSTOCK_ACCESS_HELD);
  check_copy(p->with, p->a, p->a + PITCH, PENSTOCK_ACCESS_HELD);
  copy.dstPitch = copy.WidthInBytes = sizeof(rows[0]);
  CHECK(cu->cuMemcpy2DAsync_v2(&copy, p->with->stream) == 0);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->count == 3);
  check_copy(p->with, p->a, sizeof(rows), PENSTOCK_ACCESS_WRITE);
  check_copy(p->with, p->a, p->a + sizeof(rows[0]), PENSTOCK_ACCESS_HELD);
  /* The device's, though it is called the host's. */
  copy.srcHost = (const void*)(uintptr_t)p->b;
  copy.srcPitch = PITCH;
  CHECK(cu->cuMemcpy2D_v2(&copy) == 0);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->count == 2);
  check_copy(p->with, p->b, PITCH + 24, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_GAPS);
}

/* What is refused, since the block ends before; nor has the host so much. */
static void too_much(const pair* p) {
  const size_t sizes[] = {(size_t)1 << 44, SIZE_MAX};
  for (int i = 0; i < 2; ++i) {
    p->with->engine->refuse(CUDA_ERROR_INVALID_VALUE);
    CHECK(p->with->cu.cuMemcpyHtoD_v2(p->a, pattern, sizes[i]) == CUDA_ERROR_INVALID_VALUE);
    const double_event* const event = last_event(p->with, DOUBLE_BEGIN);
    CHECK(event->touches[0].address + event->touches[0].bytes > p->a);
  }
}

/* Addresses on their way to where no kernel names them. */
static void hidden_tables(const pair* p) {
  driver_api* const cu = &p->with->cu;
  const CUdeviceptr far = new_block(p->with, 64);
  const uint64_t table[2] = {1, far + 24};
  uint64_t back[2] = {0};
  CUdeviceptr variable = 0;
  size_t bytes = 0;
  int64_t pins = 0;
  CHECK(DRIVER(cuModuleGetGlobal_v2)(&variable, &bytes, NULL, "table") == 0);
  p->with->engine->clear();
  CHECK(cu->cuMemcpyHtoD_v2(variable, table, sizeof(table)) == 0);
  CHECK(p->with->engine->pins(far) == ++pins);
  CHECK(last_event(p->with, DOUBLE_PIN)->reason == PENSTOCK_PIN_TABLE);
  CHECK(cu->cuMemcpy(variable, (uintptr_t)table, sizeof(table)) == 0);
  CHECK(p->with->engine->pins(far) == ++pins);
  /* Where it cannot stay, nothing is copied. */
  CHECK(cu->cuMemcpyHtoD_v2(variable, pattern, sizeof(table)) == 0);
  p->with->engine->refuse_pin(1);
  CHECK(cu->cuMemcpyHtoD_v2(variable, table, sizeof(table)) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(memcmp((const void*)(uintptr_t)variable, pattern, sizeof(table)) == 0);
  CHECK(count_events(p->with, DOUBLE_BEGIN) == 0);
  /* Between places of the host's. */
  CHECK(cu->cuMemcpy((uintptr_t)back, (uintptr_t)table, sizeof(table)) == 0);
  CHECK(p->with->engine->pins(far) == pins && back[1] == far + 24);
  /* What a block holds, the engine knows. */
  CHECK(cu->cuMemcpyDtoD_v2(variable, p->a, 16) == 0);
  check_copy(p->with, p->a, 16, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_AWAY);
  CHECK(cu->cuMemcpy((uintptr_t)back, p->a, 16) == 0);
  check_copy(p->with, p->a, 16, PENSTOCK_ACCESS_READ);
  /* The launches of a graph will bring what there is now. */
  CUgraph graph = NULL;
  CHECK(cu->cuStreamBeginCapture_v2(p->with->stream, 0) == 0);
  CHECK(cu->cuMemcpyHtoDAsync_v2(p->a, table, sizeof(table), p->with->stream) == 0);
  CHECK(cu->cuStreamEndCapture(p->with->stream, &graph) == 0);
  CHECK(p->with->engine->pins(far) == ++pins);
}

/* A table with an index behind it, as kernels over lists of tensors get it; data of that size. */
static void large_tables(const pair* p) {
  enum { WORDS = 128 << 10 };
  driver_api* const cu = &p->with->cu;
  const CUdeviceptr to = new_block(p->with, WORDS * sizeof(uint64_t));
  uint64_t* const words = malloc(WORDS * sizeof(uint64_t));
  CHECK(words != NULL);
  for (size_t i = 0; i < WORDS; ++i) words[i] = i / 7;
  words[1] = p->a;
  words[WORDS - 2] = p->b + 24;
  CHECK(cu->cuMemcpyHtoD_v2(to, words, WORDS * sizeof(uint64_t)) == 0);
  const double_event* event = last_event(p->with, DOUBLE_BEGIN);
  CHECK(event->count == 3);
  CHECK(event->touches[1].access == PENSTOCK_ACCESS_HELD && event->touches[1].address == p->a);
  CHECK(event->touches[2].address == p->b + 24);
  for (size_t i = 0; i < WORDS; ++i) words[i] = UINT64_C(0x3fb999999999999a) + i;
  words[1] = p->a;
  CHECK(cu->cuMemcpyHtoD_v2(to, words, WORDS * sizeof(uint64_t)) == 0);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->count == 1);
  free(words);
}

static void linear(const pair* p) {
  driver_api* const cu = &p->with->cu;
  const CUstream s = p->with->stream;
  CHECK(cu->cuMemcpyHtoD_v2(p->a, pattern, BYTES) == 0);
  check_copy(p->with, p->a, BYTES, PENSTOCK_ACCESS_WRITE);
  CHECK(cu->cuMemcpyDtoD_v2(p->b + 16, p->a, 1000) == 0);
  check_copy(p->with, p->a, 1000, PENSTOCK_ACCESS_READ);
  check_copy(p->with, p->b + 16, 1000, PENSTOCK_ACCESS_WRITE);
  CHECK(cu->cuMemcpyDtoH_v2(seen, p->b + 16, 1000) == 0);
  check_copy(p->with, p->b + 16, 1000, PENSTOCK_ACCESS_READ);
  CHECK(memcmp(seen, pattern, 1000) == 0);
  CHECK(cu->cuMemcpy(p->b, p->a, BYTES) == 0);
  CHECK(cu->cuMemcpyPeer(p->b, NULL, p->a, NULL, BYTES) == 0);
  CHECK(cu->cuMemcpyHtoDAsync_v2(p->a + 8, pattern, 64, s) == 0);
  check_copy(p->with, p->a + 8, 64, PENSTOCK_ACCESS_WRITE);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->stream == (uintptr_t)s);
  CHECK(cu->cuMemcpyDtoDAsync_v2(p->b, p->a, BYTES, s) == 0);
  CHECK(cu->cuMemcpyAsync((uintptr_t)seen, p->b, BYTES, s) == 0);
  check_copy(p->with, p->b, BYTES, PENSTOCK_ACCESS_READ);
  CHECK(memcmp(seen + 8, pattern, 64) == 0 && memcmp(seen + 72, pattern + 72, BYTES - 72) == 0);
  CHECK(cu->cuMemcpyPeerAsync(p->a, NULL, p->b, NULL, 32, s) == 0);
  CHECK(cu->cuMemcpyWithAttributesAsync(p->b, p->a, 40, NULL, s) == 0);
  check_copy(p->with, p->b, 40, PENSTOCK_ACCESS_WRITE);
  CHECK(cu->cuMemcpyDtoHAsync_v2(seen, p->a, 8, s) == 0);
  /* Addresses of the device on a side that is called the host's: CUDA takes them as they are. */
  CHECK(cu->cuMemcpyHtoD_v2(p->b, (const void*)(uintptr_t)p->a, 40) == 0);
  check_copy(p->with, p->a, 40, PENSTOCK_ACCESS_READ);
  check_copy(p->with, p->b, 40, PENSTOCK_ACCESS_WRITE);
  CHECK(cu->cuMemcpyDtoH_v2((void*)(uintptr_t)p->b, p->a, 40) == 0);
  check_copy(p->with, p->a, 40, PENSTOCK_ACCESS_READ);
  check_copy(p->with, p->b, 40, PENSTOCK_ACCESS_WRITE);
  /* Nothing of the engine's: the driver alone. */
  p->with->engine->clear();
  CHECK(cu->cuMemcpy((uintptr_t)seen, (uintptr_t)pattern, 100) == 0);
  CHECK(cu->cuMemcpyHtoD_v2(p->a, pattern, 0) == 0);
  CHECK(count_events(p->with, DOUBLE_BEGIN) == 0);
}

static void boxes(const pair* p) {
  driver_api* const cu = &p->with->cu;
  const CUstream s = p->with->stream;
  const CUDA_MEMCPY2D down = {.srcMemoryType = 1,
                              .srcHost = pattern,
                              .srcPitch = WIDTH,
                              .dstXInBytes = 4,
                              .dstY = 1,
                              .dstMemoryType = 2,
                              .dstDevice = p->a,
                              .dstPitch = PITCH,
                              .WidthInBytes = WIDTH,
                              .Height = HEIGHT};
  const CUDA_MEMCPY2D up = {.srcXInBytes = 4,
                            .srcY = 1,
                            .srcMemoryType = 4,
                            .srcDevice = p->a,
                            .srcPitch = PITCH,
                            .dstMemoryType = 1,
                            .dstHost = seen,
                            .dstPitch = WIDTH,
                            .WidthInBytes = WIDTH,
                            .Height = HEIGHT};
  const uint64_t bytes = (HEIGHT - 1) * PITCH + WIDTH;
  CHECK(cu->cuMemcpy2D_v2(&down) == 0);
  check_copy(p->with, p->a + PITCH + 4, bytes, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  CHECK(cu->cuMemcpy2DUnaligned_v2(&up) == 0);
  check_copy(p->with, p->a + PITCH + 4, bytes, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_GAPS);
  CHECK(memcmp(seen, pattern, WIDTH * HEIGHT) == 0);
  CHECK(cu->cuMemcpy2DAsync_v2(&up, s) == 0);
  CUDA_MEMCPY3D box = {.srcXInBytes = 1,
                       .srcY = 2,
                       .srcZ = 1,
                       .srcMemoryType = 2,
                       .srcDevice = p->a,
                       .srcPitch = 64,
                       .srcHeight = 8,
                       .dstMemoryType = 2,
                       .dstDevice = p->b,
                       .dstPitch = 32,
                       .dstHeight = 4,
                       .WidthInBytes = 30,
                       .Height = 3,
                       .Depth = 2};
  CHECK(cu->cuMemcpy3D_v2(&box) == 0);
  check_copy(p->with, p->a + 1 + 64 * (2 + 8), 64 * 8 + 64 * 2 + 30,
             PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_GAPS);
  check_copy(p->with, p->b, 32 * 4 + 32 * 2 + 30, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  CHECK(cu->cuMemcpy3DAsync_v2(&box, s) == 0);
  CUDA_MEMCPY3D_PEER peer;
  memcpy(&peer, &box, sizeof(peer));
  CHECK(cu->cuMemcpy3DPeer(&peer) == 0);
  check_copy(p->with, p->b, 32 * 4 + 32 * 2 + 30, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  CHECK(cu->cuMemcpy3DPeerAsync(&peer, s) == 0);
}

static void batches(const pair* p) {
  driver_api* const cu = &p->with->cu;
  CUdeviceptr to[2] = {p->b, p->b + 100};
  CUdeviceptr from[2] = {p->a, p->a + 500};
  size_t sizes[2] = {50, 60};
  p->with->engine->clear();
  /* Rows of one name with several forms: the newest, or the one asked for. */
  CHECK(cu->cuMemcpyBatchAsync_v2(to, from, sizes, 2, NULL, NULL, 0, p->with->stream) == 0);
  check_copy(p->with, p->b + 100, 60, PENSTOCK_ACCESS_WRITE);
  check_copy(p->with, p->a + 500, 60, PENSTOCK_ACCESS_READ);
  CHECK(last_event(p->with, DOUBLE_BEGIN)->count == 4);
  CUDA_MEMCPY3D_BATCH_OP op = {.src = {.type = 1, .op.ptr = {p->a, 128, 4, {0, 0}}},
                               .dst = {.type = 1, .op.ptr = {p->b, 0, 0, {0, 0}}},
                               .extent = {100, 2, 3}};
  CHECK(cu->cuMemcpy3DBatchAsync_v2(1, &op, 0, p->with->stream) == 0);
  check_copy(p->with, p->a, 128 * 4 * 2 + 128 + 100, PENSTOCK_ACCESS_READ | PENSTOCK_ACCESS_GAPS);
  check_copy(p->with, p->b, 600, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  CHECK(cu->cuMemcpy3DWithAttributesAsync(&op, 0, p->with->stream) == 0);
  check_copy(p->with, p->b, 600, PENSTOCK_ACCESS_WRITE | PENSTOCK_ACCESS_GAPS);
  op.src.type = 2; /* an array: how long an element is, nobody says */
  CHECK(cu->cuMemcpy3DBatchAsync_v2(1, &op, 0, p->with->stream) == 0);
  check_copy(p->with, p->b, 0, PENSTOCK_ACCESS_WRITE);
  CUmemDecompressParams piece = {.srcNumBytes = 77,
                                 .dstActBytes = (cuuint32_t*)(uintptr_t)(p->b + 256),
                                 .src = (void*)(uintptr_t)p->a,
                                 .dst = (void*)(uintptr_t)p->b};
  CHECK(cu->cuMemBatchDecompressAsync(&piece, 1, 0, NULL, p->with->stream) == 0);
  check_copy(p->with, p->a, 77, PENSTOCK_ACCESS_READ);
  check_copy(p->with, p->b, 0, PENSTOCK_ACCESS_WRITE);
  check_copy(p->with, p->b + 256, 4, PENSTOCK_ACCESS_WRITE);
  CHECK(cu->cuMemcpyDtoA_v2(NULL, 0, p->a, 12) == 0);
  check_copy(p->with, p->a, 12, PENSTOCK_ACCESS_READ);
  CHECK(cu->cuMemcpyAtoD_v2(p->a, NULL, 0, 13) == 0);
  check_copy(p->with, p->a, 13, PENSTOCK_ACCESS_WRITE);
}

void copies_scenario(session* with) {
  for (int i = 0; i < BYTES; ++i) pattern[i] = (unsigned char)(i * 7 + i / 256);
  const pair p = {with, new_block(with, BYTES), new_block(with, BYTES)};
  for (int active = 1; active >= 0; --active) {
    with->engine->activate(active);
    linear(&p);
    tables(&p);
    large_tables(&p);
    tables_in_rows(&p);
    too_much(&p);
    hidden_tables(&p);
    boxes(&p);
    batches(&p);
  }
  /* A refusal is what the program gets. */
  with->engine->refuse(CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(with->cu.cuMemcpyDtoH_v2(seen, p.a, 8) == CUDA_ERROR_OUT_OF_MEMORY);
}

static void check_fill(session* with, CUdeviceptr block, size_t bytes, const char* what) {
  const double_event* const event = last_event(with, DOUBLE_BEGIN);
  CHECK(event->kind == PENSTOCK_WORK_FILL && event->count == 1);
  CHECK(event->touches[0].address == block && event->touches[0].bytes == bytes);
  const uint32_t gaps = bytes > (HEIGHT - 1) * PITCH ? PENSTOCK_ACCESS_GAPS : 0;
  CHECK(event->touches[0].access == (PENSTOCK_ACCESS_WRITE | gaps));
  with->engine->read(block, seen, bytes);
  CHECK(memcmp(seen, what, 4) == 0 && memcmp(seen + bytes - 4, what, 4) == 0);
}

void fills_scenario(session* with) {
  driver_api* const cu = &with->cu;
  const CUdeviceptr a = new_block(with, BYTES);
  with->engine->activate(1);
  CHECK(cu->cuMemsetD8_v2(a, 1, 100) == 0);
  check_fill(with, a, 100, "\1\1\1\1");
  CHECK(cu->cuMemsetD16_v2(a, 0x203, 100) == 0);
  check_fill(with, a, 200, "\3\2\3\2");
  CHECK(cu->cuMemsetD32_v2(a, 0x4050607, 100) == 0);
  check_fill(with, a, 400, "\7\6\5\4");
  CHECK(cu->cuMemsetD8Async(a, 8, 100, with->stream) == 0);
  check_fill(with, a, 100, "\10\10\10\10");
  CHECK(cu->cuMemsetD16Async(a, 0x909, 100, with->stream) == 0);
  check_fill(with, a, 200, "\11\11\11\11");
  CHECK(cu->cuMemsetD32Async(a, 0xa0a0a0a, 100, with->stream) == 0);
  check_fill(with, a, 400, "\12\12\12\12");
  CHECK(last_event(with, DOUBLE_BEGIN)->stream == (uintptr_t)with->stream);
  CHECK(cu->cuMemsetD2D8_v2(a, PITCH, 1, WIDTH, HEIGHT) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + WIDTH, "\1\1\1\1");
  CHECK(cu->cuMemsetD2D16_v2(a, PITCH, 0x202, WIDTH, HEIGHT) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + 2 * WIDTH, "\2\2\2\2");
  CHECK(cu->cuMemsetD2D32_v2(a, PITCH, 0x3030303, WIDTH, HEIGHT) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + 4 * WIDTH, "\3\3\3\3");
  CHECK(cu->cuMemsetD2D8Async(a, PITCH, 4, WIDTH, HEIGHT, with->stream) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + WIDTH, "\4\4\4\4");
  CHECK(cu->cuMemsetD2D16Async(a, PITCH, 0x505, WIDTH, HEIGHT, with->stream) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + 2 * WIDTH, "\5\5\5\5");
  CHECK(cu->cuMemsetD2D32Async(a, PITCH, 0x6060606, WIDTH, HEIGHT, with->stream) == 0);
  check_fill(with, a, (HEIGHT - 1) * PITCH + 4 * WIDTH, "\6\6\6\6");
  with->engine->activate(0);
}

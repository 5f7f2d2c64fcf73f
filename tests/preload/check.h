/* SPDX-License-Identifier: Apache-2.0
 *
 * CHECK, and the small things that every scenario needs.
 */
#ifndef PENSTOCK_TESTS_CHECK_H_
#define PENSTOCK_TESTS_CHECK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api.h"

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* The driver as this program has it, a context made current, the engine that came with it. */
typedef struct {
  driver_api cu;
  const double_control* engine;
  CUstream stream;
  int few; /* rounds of what is the same in each: calls and allocations fail one by one */
} session;

void begin_session(session* made, const char* way);
CUfunction kernel_named(const char* name);
CUdeviceptr new_block(session* with, size_t bytes);
/* The last event of a kind; one of nothing if there is none. */
const double_event* last_event(session* with, int what);
size_t count_events(session* with, int what);
int touches_address(const double_event* event, uint64_t address);
/* A function of the driver's that the proxy does not know. */
#define DRIVER(name) ((__typeof__(&name))driver_symbol(#name))

/* Each returns if all is well. */
typedef void (*scenario)(session* with);
void parameters_scenario(session* with);
void code_scenario(session* with);
void copies_scenario(session* with);
void fills_scenario(session* with);
void memory_scenario(session* with);
void pointers_scenario(session* with);
void pins_scenario(session* with);
void graphs_scenario(session* with);
void life_scenario(session* with);
void threads_scenario(session* with);
void fork_scenario(session* with);

#endif /* PENSTOCK_TESTS_CHECK_H_ */

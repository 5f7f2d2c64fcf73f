/* SPDX-License-Identifier: Apache-2.0
 *
 * An engine for the tests, in the place of libpenstock.so.  It writes down all that it is told. Its
 * blocks are host memory that nobody can touch while paging is on, but between a begin() that names
 * them and its end(): a call that the proxy did not announce ends the process.
 */
#ifndef PENSTOCK_TESTS_ENGINE_DOUBLE_H_
#define PENSTOCK_TESTS_ENGINE_DOUBLE_H_

#include <stddef.h>

#include "penstock/interpose.h"

enum double_what {
  DOUBLE_ALLOCATE,
  DOUBLE_RELEASE,
  DOUBLE_ROOM,
  DOUBLE_BEGIN,
  DOUBLE_END,
  DOUBLE_PIN,
  DOUBLE_CONTEXT,
  DOUBLE_STREAM
};

typedef struct {
  int what;
  int32_t kind, opaque, captured,
      result; /* result: of end(); of a pin 1, with a token, 2, for good, or -1 */
  int32_t reason;
  uint64_t function, stream, address, bytes;
  void* context;
  uint32_t count;
  penstock_touch touches[8]; /* the first of them */
} double_event;

/* Looked up by dlsym() in the library. */
typedef struct {
  size_t (*events)(double_event* events, size_t most); /* the last of them; how many */
  void (*clear)(void);
  void (*activate)(int active);
  void (*refuse)(int32_t result); /* what the next begin() answers */
  void (*pass)(int allocations);  /* so many allocations are the driver's */
  void (*read)(uint64_t address, void* to, size_t bytes);
  int64_t (*pins)(uint64_t address);
  void (*refuse_pin)(int which); /* the so-manieth pin() from here on finds no room */
  penstock_interpose_options (*options)(void);
} double_control;

#endif /* PENSTOCK_TESTS_ENGINE_DOUBLE_H_ */

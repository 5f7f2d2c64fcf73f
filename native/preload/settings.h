/* SPDX-License-Identifier: Apache-2.0
 *
 * What the environment says: the variables that `penstock run` sets, or somebody by hand.  A value
 * that makes no sense is said on stderr and has no effect, as it is the program's run, not ours.
 */
#ifndef PENSTOCK_PRELOAD_SETTINGS_H_
#define PENSTOCK_PRELOAD_SETTINGS_H_

#include "penstock/interpose.h"

/* Reads PENSTOCK_GPU_MEMORY, _SAFETY, _RECORD, _LOG_LEVEL and PUMP's two variables. */
void penstock_read_settings(penstock_interpose_options* options);
/* Whether PENSTOCK_SUMMARY asks for a line at the end. */
int penstock_summary_wanted(void);
/* "8GiB", "1.5 GB" or bytes; 0 where it is none.  "80%" gives 0 and the share. */
uint64_t penstock_parse_size(const char* text, double* share);
/* One line on stderr, "penstock: ...". */
void penstock_say(const char* format, ...) __attribute__((format(printf, 1, 2)));

#endif /* PENSTOCK_PRELOAD_SETTINGS_H_ */

/* SPDX-License-Identifier: Apache-2.0
 *
 * Scenarios with failures in them.
 */
#ifndef PENSTOCK_TESTS_FAULTS_H_
#define PENSTOCK_TESTS_FAULTS_H_

#include "check.h"

/* 0 if none of them ended in another way than a program may; prints how many there were. */
int run_with_faults(const char* name, const char* way, scenario run);

#endif /* PENSTOCK_TESTS_FAULTS_H_ */

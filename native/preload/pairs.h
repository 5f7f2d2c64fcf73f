/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters written once, as type, name, type, name, ...: as they are declared, and as they are
 * passed on.
 */
#ifndef PENSTOCK_PRELOAD_PAIRS_H_
#define PENSTOCK_PRELOAD_PAIRS_H_

/* Each pass over its argument expands one more pair of it; no function has more than 64. */
#define PENSTOCK_PASS_4(...) __VA_ARGS__
#define PENSTOCK_PASS_16(...) \
  PENSTOCK_PASS_4(PENSTOCK_PASS_4(PENSTOCK_PASS_4(PENSTOCK_PASS_4(__VA_ARGS__))))
#define PENSTOCK_PASS(...) \
  PENSTOCK_PASS_16(PENSTOCK_PASS_16(PENSTOCK_PASS_16(PENSTOCK_PASS_16(__VA_ARGS__))))
#define PENSTOCK_LATER ()
#define PENSTOCK_LIST(...) __VA_ARGS__ /* what stands in parentheses, without them */

#define PENSTOCK_DECLARED(...) PENSTOCK_PASS(PENSTOCK_DECLARE(__VA_ARGS__))
#define PENSTOCK_DECLARE(type, name, ...) \
  type name __VA_OPT__(, PENSTOCK_DECLARE_MORE PENSTOCK_LATER(__VA_ARGS__))
#define PENSTOCK_DECLARE_MORE() PENSTOCK_DECLARE

#define PENSTOCK_NAMES(...) PENSTOCK_PASS(PENSTOCK_NAME(__VA_ARGS__))
#define PENSTOCK_NAME(type, name, ...) \
  name __VA_OPT__(, PENSTOCK_NAME_MORE PENSTOCK_LATER(__VA_ARGS__))
#define PENSTOCK_NAME_MORE() PENSTOCK_NAME

#endif /* PENSTOCK_PRELOAD_PAIRS_H_ */

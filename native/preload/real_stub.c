/* SPDX-License-Identifier: Apache-2.0
 *
 * Nothing: what the proxy is linked with in the place of the driver, for its name alone.
 */
typedef int penstock_nothing;

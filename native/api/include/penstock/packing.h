/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranges of a pager whose host memory is encoded.  A part of penstock.h, which includes it.
 *
 * Thread rule: any thread.
 */
#ifndef PENSTOCK_PACKING_H_
#define PENSTOCK_PACKING_H_

#include "penstock/penstock.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint64_t address;
  uint64_t bytes;
  uint32_t encode; /* it holds bf16 values, and will be neither written nor read on the host */
  uint32_t reserved;
  void* host; /* set: where it lies now, or null where it is encoded */
} penstock_packing;

/* Encode the host memory of a range, lossless, where that gains: `blocks` are all that it holds, in
 * order, filled, and not used before.  Pages then cross the link encoded, and the device decodes
 * them.  The range's `host` is gone afterwards. */
PENSTOCK_API penstock_status penstock_pack(penstock_pager* pager, penstock_packing* blocks,
                                           int32_t count);
/* Such a block as the host has it. */
PENSTOCK_API penstock_status penstock_read(penstock_pager* pager, uint64_t address, uint64_t bytes,
                                           void* to);
/* From here on it lies at *host, page-locked, as it is, and may be written. */
PENSTOCK_API penstock_status penstock_unpack(penstock_pager* pager, uint64_t address,
                                             uint64_t bytes, void** host);
/* Check all that is encoded: on the host by its digests, and on the device, where it is, against
 * what its code stands for; *bytes of it.  PENSTOCK_DRIVER where it is damaged. */
PENSTOCK_API penstock_status penstock_verify(penstock_pager* pager, uint64_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* PENSTOCK_PACKING_H_ */

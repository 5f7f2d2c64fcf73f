// SPDX-License-Identifier: Apache-2.0
// What the rest of the library asks of the engine behind the driver proxy, where there is one: a
// framework's allocator in such a process is the paged one.
#pragma once

#include "penstock/penstock.h"

namespace penstock::api {

bool interposed();
// The paged allocator of a device, made when it is first asked for; null, with the reason in
// penstock_last_error(), where it cannot be.
penstock_allocator* interposed_allocator(int ordinal);

}  // namespace penstock::api

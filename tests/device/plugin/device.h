// What the demo backend needs of a device beside the DeviceAllocator, whose copies are counted.
#pragma once

#include <cstddef>

// Both are false where [device, device + nbytes) is no memory of the device `index`.
bool device_read(int index, const void *device, void *to, size_t nbytes);
bool device_write(int index, void *device, const void *from, size_t nbytes);

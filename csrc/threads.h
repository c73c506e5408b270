// How many threads kernels and backends use, and who may change that when.
#pragma once

namespace etcffi {

// A call into the runtime that may use the thread pool: loading a method, running one. The number of threads
// changes only between such calls, since a kernel that has begun counts on it.
class PoolUse {
public:
  PoolUse();
  ~PoolUse();
  PoolUse(const PoolUse &) = delete;
  PoolUse &operator=(const PoolUse &) = delete;
};

// Something that holds a pointer to the thread pool: a method with delegates (XNNPACK keeps it from the time
// it is loaded on). While there is one, the pool is not replaced by another.
class PoolHolder {
public:
  PoolHolder() noexcept;
  ~PoolHolder();
  PoolHolder(const PoolHolder &) = delete;
  PoolHolder &operator=(const PoolHolder &) = delete;
};

} // namespace etcffi

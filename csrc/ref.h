// Reference counting for the handles of the C API.
//
// Ownership is a graph of counted references, in C++: a method holds its program, a tensor its block. The
// order in which Python destroys its objects (arbitrary on PyPy) can then never matter.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace etcffi {

class Counted {
public:
  Counted() = default;
  Counted(const Counted &) = delete;
  Counted &operator=(const Counted &) = delete;

  void retain() noexcept { count_.fetch_add(1, std::memory_order_relaxed); }

  void release() noexcept {
    if (count_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  // For whoever finds an object without holding it: false where its last reference is gone already.
  bool try_retain() noexcept {
    int64_t count = count_.load(std::memory_order_relaxed);
    while (count > 0 && !count_.compare_exchange_weak(count, count + 1, std::memory_order_acquire)) {
    }
    return count > 0;
  }

  bool shared() const noexcept { return count_.load(std::memory_order_acquire) > 1; }

protected:
  virtual ~Counted() = default;

private:
  std::atomic<int64_t> count_{1};
};

template <typename T> class Ref {
public:
  Ref() = default;
  Ref(const Ref &other) noexcept : Ref(other.pointer_) {}
  Ref(Ref &&other) noexcept : pointer_(std::exchange(other.pointer_, nullptr)) {}
  Ref &operator=(Ref other) noexcept {
    std::swap(pointer_, other.pointer_);
    return *this;
  }
  ~Ref() {
    if (pointer_ != nullptr) {
      pointer_->release();
    }
  }

  // Takes a further reference.
  explicit Ref(T *pointer) noexcept : pointer_(pointer) {
    if (pointer_ != nullptr) {
      pointer_->retain();
    }
  }

  // Takes over the reference that a new object is born with.
  static Ref adopt(T *pointer) noexcept {
    Ref ref;
    ref.pointer_ = pointer;
    return ref;
  }

  // Gives the reference away, to a caller in C.
  T *detach() noexcept { return std::exchange(pointer_, nullptr); }

  T *get() const noexcept { return pointer_; }
  T *operator->() const noexcept { return pointer_; }
  T &operator*() const noexcept { return *pointer_; }
  explicit operator bool() const noexcept { return pointer_ != nullptr; }

private:
  T *pointer_ = nullptr;
};

} // namespace etcffi

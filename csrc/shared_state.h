// State that methods of one program share: mutable buffers exported with share_mutable_buffers=True.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "block.h"
#include "ref.h"
#include "schema.h"

namespace etcffi {

// Such an export puts every shared buffer, and nothing else, into memory number 2, at the same place in every
// method. The methods then have to be given one block for it, which lives as long as the program.
class SharedState {
public:
  // Which of a method's planned buffers it is, as MethodMeta counts them.
  static constexpr size_t kPlannedBuffer = 1;

  // NULL unless the program's methods share state. The file says so nowhere; it is told by how the buffers
  // lie: two methods or more have tensors in memory number 2, of the same size in all of them, none of which
  // is an input or overlaps another one unless it is at the very same place.
  static std::unique_ptr<SharedState> find(const std::vector<const fb::ExecutionPlan *> &plans);

  bool used_by(const fb::ExecutionPlan *plan) const;
  const Ref<etcffi_block> &block() const { return block_; }
  size_t nbytes() const { return nbytes_; }

  // Loading a method writes the first values of its buffers, and so would undo what another one has already
  // made of them. save() before the load, restore() after it.
  std::vector<uint8_t> save() const;
  void restore(const std::vector<uint8_t> &saved, const fb::ExecutionPlan *loaded);

  // Set by whichever method is in a call: the state is one thread's at a time, as a method is.
  std::atomic<bool> in_use{false};

private:
  explicit SharedState(size_t nbytes)
      : nbytes_(nbytes), block_(etcffi_block::allocate(nbytes, DeviceType::CPU)) {}

  size_t nbytes_;
  Ref<etcffi_block> block_;
  std::set<std::pair<uint64_t, uint64_t>> initialised_; // [begin, end) of the buffers of loaded methods
};

} // namespace etcffi

#include "shared_state.h"

#include <cstring>
#include <iterator>

#include "schema/program_generated.h"

namespace etcffi {
namespace {

constexpr uint32_t kMemory = SharedState::kPlannedBuffer + 1; // number 0 is reserved and not counted

using Extent = std::pair<uint64_t, uint64_t>;

int64_t memory_size(const fb::ExecutionPlan *plan) {
  const auto *sizes = plan->non_const_buffer_sizes();
  return sizes == nullptr || sizes->size() <= kMemory ? 0 : sizes->Get(kMemory);
}

// The tensors in the memory, or none where they cannot be shared state.
std::set<Extent> extents(const fb::ExecutionPlan *plan) {
  std::set<Extent> found;
  if (plan->values() == nullptr || memory_size(plan) <= 0) {
    return found;
  }
  std::set<const fb::Tensor *> inputs;
  for (size_t i = 0; const fb::EValue *value = value_of(plan, ETCFFI_INPUT, i); ++i) {
    inputs.insert(value->val_as_Tensor());
  }
  for (const auto *value : *plan->values()) {
    const fb::Tensor *tensor = value == nullptr ? nullptr : value->val_as_Tensor();
    PlannedRange range{};
    if (!planned_range(tensor, &range) || range.memory_id != kMemory) {
      continue;
    }
    const bool added = found.emplace(range.begin, range.end).second;
    if (!added || inputs.count(tensor) > 0 || !device_of(tensor).is_cpu() ||
        range.end > static_cast<uint64_t>(memory_size(plan))) {
      return {};
    }
  }
  return found;
}

bool overlap(const std::set<Extent> &sorted) {
  uint64_t end = 0;
  for (const Extent &extent : sorted) {
    if (extent.first < end) {
      return true;
    }
    end = extent.second;
  }
  return false;
}

} // namespace

std::unique_ptr<SharedState> SharedState::find(const std::vector<const fb::ExecutionPlan *> &plans) {
  int64_t size = 0;
  size_t methods = 0;
  std::set<Extent> all;
  for (const fb::ExecutionPlan *plan : plans) {
    const int64_t own_size = memory_size(plan);
    if (own_size <= 0) {
      continue;
    }
    const std::set<Extent> own = extents(plan);
    if (size != 0 && own_size != size) {
      return nullptr;
    }
    size = own_size;
    methods += own.empty() ? 0U : 1U;
    all.insert(own.begin(), own.end());
  }
  if (methods < 2 || overlap(all)) {
    return nullptr;
  }
  return std::unique_ptr<SharedState>(new SharedState(static_cast<size_t>(size)));
}

bool SharedState::used_by(const fb::ExecutionPlan *plan) const {
  return memory_size(plan) == static_cast<int64_t>(nbytes_);
}

std::vector<uint8_t> SharedState::save() const {
  const auto *bytes = static_cast<const uint8_t *>(block_->data());
  return {bytes, std::next(bytes, static_cast<std::ptrdiff_t>(nbytes_))};
}

void SharedState::restore(const std::vector<uint8_t> &saved, const fb::ExecutionPlan *loaded) {
  for (const Extent &extent : initialised_) {
    std::memcpy(static_cast<uint8_t *>(block_->data()) + extent.first, saved.data() + extent.first,
                extent.second - extent.first);
  }
  const std::set<Extent> own = extents(loaded);
  initialised_.insert(own.begin(), own.end());
}

} // namespace etcffi

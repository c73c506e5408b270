#include "dtype.h"

#include <string>

#include "status.h"

namespace etcffi {
namespace {

// DLPack's DLDataTypeCode.
enum : int32_t {
  kNone = -1,
  kInt = 0,
  kUInt = 1,
  kFloat = 2,
  kBfloat = 4,
  kComplex = 5,
  kBool = 6,
  kFloat8_e4m3fn = 10,
  kFloat8_e4m3fnuz = 11,
  kFloat8_e5m2 = 12,
  kFloat8_e5m2fnuz = 13,
};

// In the order of ScalarType's values, which tables.cpp holds against the runtime's.
constexpr etcffi_dtype kDtypes[] = {
    {"uint8", 1, "B", kUInt, 8},
    {"int8", 1, "b", kInt, 8},
    {"int16", 2, "h", kInt, 16},
    {"int32", 4, "i", kInt, 32},
    {"int64", 8, "q", kInt, 64},
    {"float16", 2, "e", kFloat, 16},
    {"float32", 4, "f", kFloat, 32},
    {"float64", 8, "d", kFloat, 64},
    {"complex32", 4, "", kComplex, 32},
    {"complex64", 8, "Zf", kComplex, 64},
    {"complex128", 16, "Zd", kComplex, 128},
    {"bool", 1, "?", kBool, 8},
    {"qint8", 1, "", kNone, 0},
    {"quint8", 1, "", kNone, 0},
    {"qint32", 4, "", kNone, 0},
    {"bfloat16", 2, "", kBfloat, 16},
    {"quint4x2", 1, "", kNone, 0},
    {"quint2x4", 1, "", kNone, 0},
    {"bits1x8", 1, "", kNone, 0},
    {"bits2x4", 1, "", kNone, 0},
    {"bits4x2", 1, "", kNone, 0},
    {"bits8", 1, "", kNone, 0},
    {"bits16", 2, "", kNone, 0},
    {"float8_e5m2", 1, "", kFloat8_e5m2, 8},
    {"float8_e4m3fn", 1, "", kFloat8_e4m3fn, 8},
    {"float8_e5m2fnuz", 1, "", kFloat8_e5m2fnuz, 8},
    {"float8_e4m3fnuz", 1, "", kFloat8_e4m3fnuz, 8},
    {"uint16", 2, "H", kUInt, 16},
    {"uint32", 4, "I", kUInt, 32},
    {"uint64", 8, "Q", kUInt, 64},
};
constexpr int32_t kCount = sizeof(kDtypes) / sizeof(kDtypes[0]);
static_assert(kCount == static_cast<int32_t>(ScalarType::Undefined), "a scalar type has no row");

} // namespace

const etcffi_dtype &dtype_of(int32_t scalar_type) {
  if (scalar_type < 0 || scalar_type >= kCount) {
    fail(ETCFFI_BadDtype, "no scalar type has the number " + std::to_string(scalar_type));
  }
  return kDtypes[scalar_type];
}

int32_t scalar_type_of(const DLDataType &dtype) noexcept {
  if (dtype.lanes != 1) {
    return -1;
  }
  for (int32_t i = 0; i < kCount; ++i) {
    if (kDtypes[i].dl_code == dtype.code && kDtypes[i].dl_bits == dtype.bits) {
      return i;
    }
  }
  return -1;
}

} // namespace etcffi

const etcffi_dtype *etcffi_dtype_of(int32_t scalar_type) {
  using namespace etcffi;
  return scalar_type < 0 || scalar_type >= kCount ? nullptr : &kDtypes[scalar_type];
}

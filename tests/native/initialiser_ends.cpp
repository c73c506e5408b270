// A library whose initialiser ends the process, for a reason of its own.
#include <cstdlib>

namespace {
const int never = (std::abort(), 0);
}

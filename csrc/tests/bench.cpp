#include "check.h"
namespace tidemill::check {
void bench(const KernelTable&, const char*) {}
}

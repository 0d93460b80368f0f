// Ops that read or write where an index array points. They have no formula: the schedule is all.
#include "common/accumulate.cuh"
#include "common/fixed.cuh"
#include "common/gather.cuh"
#include "common/lists.cuh"
#include "common/scatter.cuh"
#include "common/turned.cuh"
#include "common/units.cuh"

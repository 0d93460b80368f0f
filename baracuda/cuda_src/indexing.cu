// Ops that read or write where an index array points. They have no formula: the schedule is all.
#include "common/gather.cuh"
#include "common/scatter.cuh"
